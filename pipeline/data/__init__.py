"""The journals, rings and tables that jobs read, and the folder that they write."""
