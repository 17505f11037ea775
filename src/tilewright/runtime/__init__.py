"""What stands between a call and a program: argument checks today; cache and worker pool to come."""
