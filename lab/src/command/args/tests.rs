//! Tests of the command line.

use clap::CommandFactory;

use super::*;

#[test]
fn clap_accepts_the_definition() {
    LabArgs::command().debug_assert();
}
