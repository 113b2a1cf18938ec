//! Cache lines of a simulated machine: who holds each, in which of the four states of MESI, and what moving them takes.
//!
//! Owns the states and the counts. Does not own who runs when: that is `sched`. Caches are as large as all that is
//! touched, so that a line leaves one only because another processor asks for it: what is counted is sharing alone.
//!
//! | held as | by | a read of its own | a write of its own | a read of another | a write of another |
//! |---|---|---|---|---|---|
//! | modified | one | free | free | one hop, both share | one hop, one copy invalidated |
//! | exclusive | one | free | free, becomes modified | one hop, both share | one hop, one copy invalidated |
//! | shared | several | free | one hop, the other copies invalidated | one hop | one hop, all copies invalidated |
//! | invalid | nobody | cold: from memory, not counted as a hop | the same | | |
//!
//! * I1: a line that is modified or exclusive has one holder.
//! * I2: a hop is as far as the farthest processor that has to answer: for a read the nearest holder, for a write the
//!   farthest.
//! * I3: the hops that a processor makes while it holds a lock are time that everybody else waits for that lock: they
//!   are counted for the lock too.

use std::collections::HashMap;

/// Bytes of a cache line.
pub const LINE: usize = 64;
/// Distances that differ: the same core complex, the same socket, another socket.
pub const DISTANCES: usize = 3;

/// Hops by distance.
pub type Hops = [u64; DISTANCES];

/// What a processor does to a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads.
    Read,
    /// Stores, or exchanges: it needs the line alone.
    Write,
}

/// How far processors are from each other: number `n` is in complex `n / complex` and in socket `n / socket`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Processors that share a last-level cache.
    pub complex: usize,
    /// Processors of a socket.
    pub socket: usize,
}

impl Topology {
    /// The distance of two processors: 0, 1 or 2.
    #[must_use]
    pub fn distance(&self, a: usize, b: usize) -> usize {
        match (a / self.complex.max(1) == b / self.complex.max(1), a / self.socket.max(1) == b / self.socket.max(1)) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        }
    }
}

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accesses to lines.
    pub accesses: u64,
    /// Of these, to a line that nobody held.
    pub cold: u64,
    /// A line came from another processor's cache.
    pub transfers: u64,
    /// A holder of a shared copy became the only one: no data moves, but the others have to answer.
    pub upgrades: u64,
    /// Copies that others lost.
    pub invalidations: u64,
    /// A lock was found taken.
    pub lock_waits: u64,
    /// Transfers and upgrades by distance.
    pub hops: Hops,
    /// The hops of each line or lock (I3) that has any, by falling number: each is used by one processor at a time.
    pub busiest: Vec<Hops>,
}

#[derive(Debug)]
struct Line {
    /// A bit for each processor that holds it.
    holders: Vec<u64>,
    /// Modified or exclusive (I1).
    alone: bool,
    /// More than one processor has touched it ever.
    crossed: bool,
    hops: Hops,
}

impl Line {
    fn holds(&self, cpu: usize) -> bool {
        self.holders[cpu / 64] & (1 << (cpu % 64)) != 0
    }

    fn add(&mut self, cpu: usize) {
        self.holders[cpu / 64] |= 1 << (cpu % 64);
    }

    fn others(&self, cpu: usize) -> impl Iterator<Item = usize> + '_ {
        let all = (0..64 * self.holders.len()).filter(|&other| self.holds(other));
        all.filter(move |&other| other != cpu)
    }
}

/// The machine.
#[derive(Debug)]
pub struct Machine {
    topology: Topology,
    words: usize,
    lines: HashMap<usize, Line>,
    /// Locks that each processor holds, the last one last.
    held: Vec<Vec<usize>>,
    locks: HashMap<usize, Hops>,
    counts: Counts,
}

impl Machine {
    /// Of so many processors at most; nobody holds a line.
    #[must_use]
    pub fn new(topology: Topology, most: usize) -> Machine {
        Machine {
            topology,
            words: most.div_ceil(64),
            lines: HashMap::new(),
            held: vec![Vec::new(); most],
            locks: HashMap::new(),
            counts: Counts::default(),
        }
    }

    /// A processor touches so many bytes there. Returns whether another one has ever touched a line of them: what
    /// nobody else sees may happen at any time, and need not be told apart by the scheduler.
    pub fn touch(&mut self, cpu: usize, address: usize, bytes: usize, access: Access) -> bool {
        let mut crossed = false;
        for line in address / LINE..=(address + bytes.max(1) - 1) / LINE {
            crossed |= self.touch_line(cpu, line, access);
        }
        crossed
    }

    fn touch_line(&mut self, cpu: usize, at: usize, access: Access) -> bool {
        let (topology, counts) = (self.topology, &mut self.counts);
        let line = self.lines.entry(at).or_insert_with(|| Line {
            holders: vec![0; self.words],
            alone: false,
            crossed: false,
            hops: [0; DISTANCES],
        });
        counts.accesses += 1;
        let had = line.holds(cpu);
        let distances = || line.others(cpu).map(|other| topology.distance(cpu, other));
        let others = distances().count() as u64;
        // I2.
        let far = match access {
            Access::Read if had => None,
            Access::Read => distances().min(),
            Access::Write => distances().max(),
        };
        line.crossed |= others > 0;
        if !had && others == 0 {
            counts.cold += 1;
        }
        match access {
            Access::Read if had => {}
            Access::Read => {
                line.alone = others == 0;
                line.add(cpu);
            }
            Access::Write => {
                counts.invalidations += others;
                line.holders.fill(0);
                line.add(cpu);
                line.alone = true;
            }
        }
        if let Some(far) = far {
            *(if had { &mut counts.upgrades } else { &mut counts.transfers }) += 1;
            counts.hops[far] += 1;
            line.hops[far] += 1;
            for lock in &self.held[cpu] {
                self.locks.entry(*lock).or_default()[far] += 1; // I3
            }
        }
        line.crossed
    }

    /// A processor found a lock taken.
    pub fn waits(&mut self) {
        self.counts.lock_waits += 1;
    }

    /// A processor has taken the lock at an address; the hop that its word made counts for the lock.
    pub fn took(&mut self, cpu: usize, lock: usize) {
        self.held[cpu].push(lock);
    }

    /// It gives the lock back.
    pub fn gave(&mut self, cpu: usize, lock: usize) {
        self.held[cpu].retain(|&held| held != lock);
    }

    /// Counts anew; lines stay where they are.
    pub fn reset(&mut self) {
        self.counts = Counts::default();
        self.locks.clear();
        for line in self.lines.values_mut() {
            line.hops = [0; DISTANCES];
        }
    }

    /// What was counted.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = self.counts.clone();
        let lines = self.lines.values().map(|line| line.hops);
        counts.busiest =
            lines.chain(self.locks.values().copied()).filter(|hops| hops.iter().sum::<u64>() > 0).collect();
        // By number, then by distance: nothing that differs from run to run.
        counts.busiest.sort_by_key(|hops| std::cmp::Reverse((hops.iter().sum::<u64>(), *hops)));
        counts
    }
}

#[cfg(test)]
mod tests;
