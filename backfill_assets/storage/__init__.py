"""Access to the folders and files of the warehouse; other packages reach its files only through this one."""
