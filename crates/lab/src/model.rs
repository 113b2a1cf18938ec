//! Scaling beyond this machine: from what shared cache lines cost here, I/Os a second on 1 to 512 cores.
//!
//! Owns the model: what an arm shares, how that becomes a closed queueing network, and its curve. Measures nothing
//! itself ([`costs`] does) and does not judge its own fit ([`fit`] does). The reasons are in
//! `docs/scaling-model.md`.
//!
//! A core that works on an I/O is a customer. Its private work is thinking; a cache line or lock that others use too is
//! a server with one customer at a time. With `n` cores that share it, a visit finds the line elsewhere with
//! probability `p = (n - 1) / n`, as somebody else came last; then it takes `moved_ns` more, of which the core hides
//! `hidden_ns` behind its private work, because it executes out of order. So for each core
//!
//! ```text
//!   thinking  = private(n) - sum over shared things of visits * p * hidden
//!   demand(i) = visits(i) * (local(i) + p * moved(i))
//! ```
//!
//! where `private(n)` is what it is on one core for n = 1, and otherwise what it is while the other core works too: two
//! CPUs may share a core, a clock or a cache, which has nothing to do with lines that an arm shares. The rate
//! is that of exact mean value analysis ([`queue`]).
//!
//! * M1. On one core nothing is elsewhere: the rate is 1 / (private + visits * local).
//!   So many cores are never faster than so many times what one can do beside another.
//! * M2. No rate exceeds one visit per `local + p * moved`, however many cores there are.
//! * M3. What is not shared scales evenly: memory bandwidth, the last-level cache and the clock frequency of a full
//!   machine are left out. So is distance: all cores are as far from each other as the two that were measured.

pub mod costs;
pub mod fit;
pub mod queue;

/// The cores of every curve; 80 is what the thread on in-flight counters had.
pub const CORES: [u32; 11] = [1, 2, 4, 8, 16, 32, 64, 80, 128, 256, 512];

/// What an arm does to something that other cores use too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Visit {
    /// So many atomic operations on one line in a row, with nothing in between.
    Line {
        /// How many.
        burst: u32,
    },
    /// Takes a lock, works under it, and gives it back.
    Lock {
        /// Work under it.
        hold_ns: f64,
    },
}

/// Something that cores share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shared {
    /// What it is: `in-flight counter`.
    pub what: &'static str,
    /// What a visit does.
    pub visit: Visit,
    /// Visits per I/O; below 1 when a visit serves a batch.
    pub visits_per_io: f64,
}

impl Shared {
    /// A line that is changed by atomic operations, one at a time.
    pub fn line(what: &'static str, visits_per_io: f64) -> Self {
        Self { what, visit: Visit::Line { burst: 1 }, visits_per_io }
    }

    /// A lock.
    pub fn lock(what: &'static str, visits_per_io: f64, hold_ns: f64) -> Self {
        Self { what, visit: Visit::Lock { hold_ns }, visits_per_io }
    }

    /// So many operations in a row at each visit, as a batch of starts does.
    pub fn burst(mut self, operations: u32) -> Self {
        self.visit = Visit::Line { burst: operations.max(1) };
        self
    }
}

/// What a visit costs, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct VisitCost {
    /// When nobody else came in between.
    pub local_ns: f64,
    /// How much longer the line or lock is taken when somebody did.
    pub moved_ns: f64,
    /// How much the core hides behind private work, of that and of waiting for it. Below 0 when it costs the core more
    /// than it takes the line.
    pub hidden_ns: f64,
}

impl VisitCost {
    /// The cost that explains how fast two cores went. `alone_ns` is a core's time between visits, beside another core
    /// that works without visits, `local_ns` what a
    /// visit adds to it, `both_ns` the time per visit of either core when both go, and `moved_ns` how long a line is
    /// taken that comes from the other core. A line cannot be taken for longer than two cores' rate allows (M2), so
    /// what they did limits `moved_ns`.
    pub fn of_pair(alone_ns: f64, local_ns: f64, both_ns: f64, moved_ns: f64) -> Self {
        let both_ns = both_ns.max(alone_ns + local_ns); // M1
        let moved_ns = moved_ns.min(both_ns - 2.0 * local_ns).max(0.0);
        let demand = local_ns + moved_ns / 2.0;
        // Both take less time the more is hidden, so bisect. Below: twice as slow as measured; above: no thinking.
        let (mut low, mut high) = (-2.0 * (alone_ns + both_ns), 2.0 * alone_ns);
        for _ in 0..200 {
            let middle = f64::midpoint(low, high);
            let think = (alone_ns - middle / 2.0).max(0.0);
            let each = 2.0 / queue::throughput(2, think, &[demand]);
            if each > both_ns { low = middle } else { high = middle }
        }
        Self { local_ns, moved_ns, hidden_ns: f64::midpoint(low, high) }
    }
}

/// How many copies there are of what is shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Copies {
    /// One for all cores.
    #[default]
    One,
    /// So many, each for an equal part of the cores.
    Total(u32),
    /// One for each so many cores.
    PerCores(u32),
}

impl Copies {
    /// Groups of cores with a copy each: how many groups, and of how many cores.
    fn groups(self, cores: u32) -> [(u32, u32); 2] {
        match self {
            Self::One => [(1, cores), (0, 0)],
            Self::Total(copies) => {
                let copies = copies.max(1);
                [(cores % copies, cores / copies + 1), (copies - cores % copies, cores / copies)]
            }
            Self::PerCores(each) => [(cores / each.max(1), each.max(1)), (1, cores % each.max(1))],
        }
    }
}

/// An arm as the model sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Load {
    /// Work of an I/O that touches nothing shared, in ns, on one core.
    pub private_ns: f64,
    /// Work of an I/O that touches nothing shared, in ns, while other cores work too.
    pub beside_ns: f64,
    /// Visits per I/O, and what each costs.
    pub shared: Vec<(f64, VisitCost)>,
    /// Copies of what is shared.
    pub copies: Copies,
}

impl Load {
    /// I/Os a second of so many cores together.
    pub fn iops(&self, cores: u32) -> f64 {
        let shared: f64 = self.shared.iter().map(|(visits, cost)| visits * cost.local_ns).sum();
        // M1: what is hidden is never more than what there was to hide.
        let at_best = f64::from(cores) * 1e9 / (self.private_for(cores) + shared);
        self.sum_of_groups(cores, queue::throughput).min(at_best)
    }

    /// The most that the busiest line or lock allows, whatever the times' distribution.
    pub fn at_most(&self, cores: u32) -> f64 {
        self.sum_of_groups(cores, queue::at_most)
    }

    fn sum_of_groups(&self, cores: u32, per_ns: fn(u32, f64, &[f64]) -> f64) -> f64 {
        let private_ns = self.private_for(cores);
        let of = |(groups, cores): (u32, u32)| {
            let (think, demands) = self.network(private_ns, cores);
            if groups == 0 || cores == 0 { 0.0 } else { f64::from(groups) * per_ns(cores, think, &demands) }
        };
        1e9 * self.copies.groups(cores).into_iter().map(of).sum::<f64>()
    }

    fn private_for(&self, cores: u32) -> f64 {
        if cores > 1 { self.beside_ns } else { self.private_ns }
    }

    /// Thinking and demands of cores that share one copy.
    fn network(&self, private_ns: f64, cores: u32) -> (f64, Vec<f64>) {
        let elsewhere = f64::from(cores.saturating_sub(1)) / f64::from(cores.max(1));
        let hidden: f64 = self.shared.iter().map(|(visits, cost)| visits * elsewhere * cost.hidden_ns).sum();
        let demand = |(visits, cost): &(f64, VisitCost)| visits * (cost.local_ns + elsewhere * cost.moved_ns);
        ((private_ns - hidden).max(0.0), self.shared.iter().map(demand).collect())
    }
}

#[cfg(test)]
mod tests;
