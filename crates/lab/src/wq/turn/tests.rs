//! Quantiles at their edges.

use super::*;

#[test]
fn quantiles_name_the_bound_of_their_cell() {
    let cells = [(10, 50), (20, 49), (1000, 1)];
    assert_eq!([0.5, 0.51, 0.99, 0.995, 1.0].map(|share| quantile(&cells, share)), [10, 20, 20, 1000, 1000]);
    assert_eq!((quantile(&[], 0.5), quantile(&[(7, 1)], 0.0)), (0, 7));
}
