//! Closed queueing networks: the rate at which a fixed number of customers passes through shared servers.
//!
//! Owns the arithmetic and its sources, without reference to cores or cache lines.
//!
//! * Exact mean value analysis: M. Reiser and S. S. Lavenberg, "Mean-Value Analysis of Closed Multichain Queuing
//!   Networks", Journal of the ACM 27(2), 1980. A customer that comes to a server finds there what a network with one
//!   customer less has on average; the recursion over the number of customers is exact for exponential times.
//! * Bounds: P. J. Denning and J. P. Buzen, "The Operational Analysis of Queueing Network Models", ACM Computing
//!   Surveys 10(3), 1978. They hold for all distributions of times.

/// Returns the rounds of all customers together per unit of time. Each customer thinks for `think` on average, then
/// visits each server once for its demand, one customer at a time. Exact mean value analysis.
pub fn throughput(customers: u32, think: f64, demands: &[f64]) -> f64 {
    solve(customers, think, demands).0
}

/// Returns the throughput, and the mean number of customers at each server, waiting or served.
pub fn solve(customers: u32, think: f64, demands: &[f64]) -> (f64, Vec<f64>) {
    let mut queues = vec![0.0; demands.len()];
    let mut rate = 0.0;
    for inside in 1..=customers {
        let responses: Vec<f64> = demands.iter().zip(&queues).map(|(demand, queue)| demand * (1.0 + queue)).collect();
        rate = f64::from(inside) / (think + responses.iter().sum::<f64>());
        for (queue, response) in queues.iter_mut().zip(&responses) {
            *queue = rate * response;
        }
    }
    (rate, queues)
}

/// Returns the upper bound for any distribution of times: no customer waits, or the busiest server never pauses.
pub fn at_most(customers: u32, think: f64, demands: &[f64]) -> f64 {
    let busiest = demands.iter().copied().fold(0.0, f64::max);
    let alone = f64::from(customers) / (think + demands.iter().sum::<f64>());
    if busiest > 0.0 { alone.min(1.0 / busiest) } else { alone }
}

#[cfg(test)]
mod tests;
