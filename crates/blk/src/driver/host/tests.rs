//! Opening and probing real files, and the words of each error.
