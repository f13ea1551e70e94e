"""What `make bench FULL=1` measures besides: a part a module, each of which gives its section of the document."""
