"""Access to the files of the warehouse, in folders and in buckets; other rooms reach them only through this one."""
