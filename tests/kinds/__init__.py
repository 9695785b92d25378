"""One file for each kind of fault that was met in the field: a property that holds of every case of the kind."""
