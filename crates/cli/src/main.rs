//! The `sheave` command.
fn main() {}
