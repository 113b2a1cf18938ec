//! Closed queueing networks: the rate at which a fixed number of customers passes through shared servers.
//!
//! Owns the arithmetic and its sources. It does not know about cores or cache lines.
//!
//! * Exact mean value analysis: M. Reiser and S. S. Lavenberg, "Mean-Value Analysis of Closed Multichain Queuing
//!   Networks", Journal of the ACM 27(2), 1980. A customer that arrives at a server finds the average queue of a
//!   network with one customer less. The recursion over the number of customers is exact for exponential times.
//! * Bounds: P. J. Denning and J. P. Buzen, "The Operational Analysis of Queueing Network Models", ACM Computing
//!   Surveys 10(3), 1978. They hold for all distributions of times.

/// Returns the number of rounds that all customers together make per unit of time, by exact mean value analysis. Each
/// customer thinks for `think` on average. Then it visits each server once, which serves it for its demand; a server
/// serves one customer at a time.
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

/// Returns the upper bound of the throughput for any distribution of times: no customer waits, or the busiest server
/// never pauses.
pub fn at_most(customers: u32, think: f64, demands: &[f64]) -> f64 {
    let busiest = demands.iter().copied().fold(0.0, f64::max);
    let alone = f64::from(customers) / (think + demands.iter().sum::<f64>());
    if busiest > 0.0 { alone.min(1.0 / busiest) } else { alone }
}

#[cfg(test)]
mod tests {
    use sheave_base::rng::Rng;

    use super::*;

    fn close(left: f64, right: f64) -> bool {
        (left - right).abs() <= 1e-9 * right.abs()
    }

    /// Returns the throughput of the machine repairman (Erlang's finite source model): from the probability that no
    /// customer is at the server, which follows from the birth-death chain of the model.
    fn repairman(customers: u32, think: f64, demand: f64) -> f64 {
        let (mut term, mut sum) = (1.0, 1.0);
        for gone in 0..customers {
            term *= f64::from(customers - gone) * demand / think;
            sum += term;
        }
        (1.0 - 1.0 / sum) / demand
    }

    #[test]
    fn one_server_and_thinking_is_the_machine_repairman() {
        for customers in [1, 2, 3, 8, 64] {
            for (think, demand) in [(100.0, 50.0), (10.0, 90.0), (1000.0, 1.0)] {
                let (ours, closed) = (throughput(customers, think, &[demand]), repairman(customers, think, demand));
                assert!(close(ours, closed), "{customers} {think} {demand}: {ours} {closed}");
            }
        }
    }

    #[test]
    fn customers_are_where_they_think_or_are_served() {
        for customers in [1, 2, 8, 64] {
            let (rate, queues) = solve(customers, 100.0, &[40.0, 15.0]);
            assert!(close(rate * 100.0 + queues.iter().sum::<f64>(), f64::from(customers)), "Little's law: {queues:?}");
            assert!(queues[0] > queues[1], "more wait at the slower one: {queues:?}");
        }
    }

    #[test]
    fn equal_servers_without_thinking_share_evenly() {
        // The formula for n customers at k equal servers: X = n / (d (n + k - 1)).
        for (customers, servers) in [(1, 1), (1, 4), (5, 3), (100, 7)] {
            let ours = throughput(customers, 0.0, &vec![20.0; servers]);
            assert!(close(ours, f64::from(customers) / (20.0 * (f64::from(customers) + servers as f64 - 1.0))));
        }
    }

    #[test]
    fn unshared_data_moves_no_line() {
        assert_eq!(throughput(0, 10.0, &[5.0]), 0.0);
        assert!(close(throughput(512, 10.0, &[]), 51.2));
        assert!(close(at_most(512, 10.0, &[]), 51.2));
    }

    #[test]
    fn it_grows_towards_the_busiest_server_and_never_past_the_bound() {
        let (think, demands) = (200.0, [30.0, 7.0]);
        let mut last = 0.0;
        for customers in 1..=512 {
            let rate = throughput(customers, think, &demands);
            assert!(
                rate >= last * (1.0 - 1e-12) && rate <= at_most(customers, think, &demands) * (1.0 + 1e-12),
                "{customers}"
            );
            last = rate;
        }
        assert!(close(throughput(1, think, &demands), 1.0 / 237.0));
        assert!((last * 30.0 - 1.0).abs() < 1e-9, "full: {}", last * 30.0);
    }

    /// Simulates customers that pass one server, event by event, with times from `time`.
    fn simulate(customers: usize, rounds: u32, mut time: impl FnMut(bool) -> f64) -> f64 {
        let mut ready: Vec<f64> = (0..customers).map(|_| time(true)).collect();
        let (mut free_at, mut done) = (0.0_f64, 0);
        while done < rounds {
            let (next, _) = ready.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1)).expect("a customer");
            free_at = free_at.max(ready[next]) + time(false);
            ready[next] = free_at + time(true);
            done += 1;
        }
        f64::from(done) / free_at
    }

    #[test]
    fn a_simulation_agrees() {
        let mut rng = Rng::new(7);
        let mut exponential = |mean: f64| -mean * (((rng.draw() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64).ln();
        for customers in [1, 2, 6] {
            let simulated = simulate(customers, 400_000, |think| exponential(if think { 100.0 } else { 40.0 }));
            let ours = throughput(customers as u32, 100.0, &[40.0]);
            assert!((simulated / ours - 1.0).abs() < 0.02, "{customers}: {simulated} {ours}");
            // With constant times the throughput reaches the bound.
            let even = simulate(customers, 100_000, |think| if think { 100.0 } else { 40.0 });
            assert!((even / at_most(customers as u32, 100.0, &[40.0]) - 1.0).abs() < 0.001, "{customers}: {even}");
        }
    }
}
