"""Help for the tests of dataset folders, here and in projects that use this one."""
