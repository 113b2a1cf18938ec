//! Names with and without modules.

use super::*;

#[test]
fn names_of_functions_are_told_without_their_modules() {
    let told = [
        ("sheave_iomap::dio::submission::issue_one", "submission::issue_one"),
        (
            "sheave_blk::hctx::complete::<impl sheave_blk::hctx::Hctx>::end_requests",
            "complete::<impl Hctx>::end_requests",
        ),
        ("<sheave_lab::exp::stores::PerCpu as sheave_blk::bio_set::BioStore>::get", "<PerCpu as BioStore>::get"),
        ("sheave_uring::ring::inner::Inner::take_sqes", "Inner::take_sqes"),
        ("hdrhistogram::Histogram<T>::value_at_quantile", "Histogram<T>::value_at_quantile"),
        ("clock_gettime@@GLIBC_2.17", "clock_gettime@@GLIBC_2.17"),
        ("_int_malloc", "_int_malloc"),
        ("", ""),
    ];
    for (name, short) in told {
        assert_eq!(short_name(name), short);
    }
}
