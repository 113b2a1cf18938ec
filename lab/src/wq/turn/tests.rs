//! Quantiles at their edges.

use super::*;

#[test]
fn quantiles_name_the_bound_of_their_cell() {
    let cells = [(10, 50), (20, 49), (1000, 1)];
    assert_eq!([0.5, 0.51, 0.99, 0.995, 1.0].map(|share| quantile(&cells, share)), [10, 20, 20, 1000, 1000]);
    assert_eq!((quantile(&[], 0.5), quantile(&[(7, 1)], 0.0)), (0, 7));
}

#[test]
fn what_the_warm_up_counted_is_not_the_turns() {
    let early = PoolFigures { created: 1, taken: 10, starts: vec![(7, 4), (15, 6)], ..PoolFigures::default() };
    let late = PoolFigures { created: 2, taken: 25, starts: vec![(7, 4), (15, 20), (31, 1)], ..PoolFigures::default() };
    let turn = late.since(&early);
    assert_eq!((turn.created, turn.taken, turn.starts), (2, 15, vec![(15, 14), (31, 1)]));
}
