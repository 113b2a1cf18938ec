//! Cache lines of a simulated machine: the holders of each, its state in MESI, and the cost of moving it.
//!
//! Owns the states and the counts. Does not own the order of the threads (`sched`). Caches are unlimited: a line leaves
//! a cache only because another processor requests it, so only the cost of sharing is counted.
//!
//! | held as | by | a read of its own | a write of its own | a read of another | a write of another |
//! |---|---|---|---|---|---|
//! | modified | one | free | free | one hop, both share | one hop, one copy invalidated |
//! | exclusive | one | free | free, becomes modified | one hop, both share | one hop, one copy invalidated |
//! | shared | several | free | one hop, the other copies invalidated | one hop | one hop, all copies invalidated |
//! | invalid | nobody | cold: from memory, not counted as a hop | the same | | |
//!
//! * I1: a line that is modified or exclusive has one holder.
//! - I2: the distance of a hop is the distance to the processor that has to answer. This is the nearest holder for a
//!   read, and the farthest for a write.
//! - I3: a hop of a processor that holds a lock delays every processor that waits for that lock, so it is counted for
//!   the lock too.

use std::collections::HashMap;

/// Bytes of a cache line.
pub const LINE: usize = 64;
/// Number of distances: the same core complex, the same socket, another socket.
pub const DISTANCES: usize = 3;

/// Counts of hops by distance.
pub type Hops = [u64; DISTANCES];

/// Kind of an access to a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Read,
    /// A store or an exchange: it needs the line exclusively.
    Write,
}

/// Places of the processors: number `n` is in complex `n / complex` and in socket `n / socket`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Number of processors that share a last-level cache.
    pub complex: usize,
    /// Number of processors of a socket.
    pub socket: usize,
}

impl Topology {
    /// Returns the distance of two processors: 0, 1 or 2.
    #[must_use]
    pub fn distance(&self, a: usize, b: usize) -> usize {
        match (a / self.complex.max(1) == b / self.complex.max(1), a / self.socket.max(1) == b / self.socket.max(1)) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        }
    }
}

/// Counts of a simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of accesses to lines.
    pub accesses: u64,
    /// Number of accesses to a line without a holder.
    pub cold: u64,
    /// Number of lines that came from another processor's cache.
    pub transfers: u64,
    /// Number of writes by a holder of a shared copy, which becomes the only one: no data moves, but the other holders
    /// have to answer.
    pub upgrades: u64,
    /// Number of copies that other processors lost.
    pub invalidations: u64,
    /// Times that a lock was found held.
    pub lock_waits: u64,
    /// Transfers and upgrades by distance.
    pub hops: Hops,
    /// Hops of each line or lock (I3) that has any, in descending order: only one processor at a time can use each of
    /// them.
    pub busiest: Vec<Hops>,
}

#[derive(Debug)]
struct Line {
    /// Processors that hold the line, one bit each.
    holders: Vec<u64>,
    /// True if the line is modified or exclusive (I1).
    alone: bool,
    /// True if more than one processor has touched the line so far.
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

#[derive(Debug)]
pub struct Machine {
    topology: Topology,
    words: usize,
    lines: HashMap<usize, Line>,
    /// Locks that each processor holds, in the order of taking.
    held: Vec<Vec<usize>>,
    locks: HashMap<usize, Hops>,
    counts: Counts,
}

impl Machine {
    /// Makes a machine of `most` processors; no line has a holder.
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

    /// Counts an access of a processor to `bytes` bytes at `address`. Returns true if another processor has ever
    /// touched one of these lines. An access that returns false is visible to no other thread, and needs no switch of
    /// threads.
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

    /// Counts that a processor found a lock held.
    pub fn waits(&mut self) {
        self.counts.lock_waits += 1;
    }

    /// Records that a processor has taken a lock; the hop of the lock's own word counts for the lock.
    pub fn took(&mut self, cpu: usize, lock: usize) {
        self.held[cpu].push(lock);
    }

    /// Records that a processor has released a lock.
    pub fn gave(&mut self, cpu: usize, lock: usize) {
        self.held[cpu].retain(|&held| held != lock);
    }

    /// Resets the counts; lines stay where they are.
    pub fn reset(&mut self) {
        self.counts = Counts::default();
        self.locks.clear();
        for line in self.lines.values_mut() {
            line.hops = [0; DISTANCES];
        }
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = self.counts.clone();
        let lines = self.lines.values().map(|line| line.hops);
        counts.busiest =
            lines.chain(self.locks.values().copied()).filter(|hops| hops.iter().sum::<u64>() > 0).collect();
        // Ties are sorted by distance, so that the order is the same in each run.
        counts.busiest.sort_by_key(|hops| std::cmp::Reverse((hops.iter().sum::<u64>(), *hops)));
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const APART: Topology = Topology { complex: 2, socket: 4 };

    fn machine() -> Machine {
        Machine::new(APART, 8)
    }

    fn shape(counts: &Counts) -> [u64; 4] {
        [counts.cold, counts.transfers, counts.upgrades, counts.invalidations]
    }

    #[test]
    fn who_is_alone_pays_nothing() {
        let mut machine = machine();
        for access in [Access::Read, Access::Write, Access::Write, Access::Read] {
            assert!(!machine.touch(0, 128, 8, access), "nobody else has seen it");
        }
        let counts = machine.counts();
        assert_eq!((shape(&counts), counts.hops, counts.accesses), ([1, 0, 0, 0], [0; 3], 4));
    }

    #[test]
    fn a_line_with_two_writers_moves_between_them() {
        let mut machine = machine();
        machine.touch(0, 128, 8, Access::Write);
        for turn in 0..10 {
            assert!(machine.touch((turn + 1) % 2, 184, 8, Access::Write), "the same line, another word of it");
        }
        let counts = machine.counts();
        assert_eq!((shape(&counts), counts.hops), ([1, 10, 0, 10], [10, 0, 0]));
        assert_eq!(counts.busiest, [[10, 0, 0]]);
    }

    #[test]
    fn a_line_that_is_shared_comes_once_and_is_taken_back_from_all() {
        let mut machine = machine();
        machine.touch(0, 0, 8, Access::Write);
        for reader in 1..8 {
            machine.touch(reader, 0, 8, Access::Read);
            machine.touch(reader, 0, 8, Access::Read);
        }
        // The nearest holder answers a read: only the first reader of a complex and of a socket has a longer hop.
        assert_eq!(machine.counts().hops, [4, 2, 1]);
        assert_eq!(shape(&machine.counts()), [1, 7, 0, 0]);
        machine.touch(0, 0, 8, Access::Write);
        // The writer has the data: only the other holders have to answer, and the farthest decides the distance.
        assert_eq!(shape(&machine.counts()), [1, 7, 1, 7]);
        assert_eq!(machine.counts().hops, [4, 2, 2]);
        machine.touch(7, 0, 8, Access::Read);
        assert_eq!(shape(&machine.counts()), [1, 8, 1, 7], "who lost its copy has to fetch it");
    }

    #[test]
    fn a_reader_of_a_written_line_leaves_the_writer_a_shared_copy() {
        let mut machine = machine();
        machine.touch(0, 0, 8, Access::Write);
        machine.touch(1, 0, 8, Access::Read);
        machine.touch(0, 0, 8, Access::Read);
        assert_eq!(shape(&machine.counts()), [1, 1, 0, 0], "it reads its own copy");
        machine.touch(0, 0, 8, Access::Write);
        assert_eq!(shape(&machine.counts()), [1, 1, 1, 1]);
    }

    #[test]
    fn data_over_several_lines_touches_each() {
        let mut machine = machine();
        machine.touch(0, 60, 8, Access::Write);
        machine.touch(0, 256, 0, Access::Write);
        assert_eq!(machine.counts().cold, 3);
        machine.touch(5, 0, 256, Access::Read);
        assert_eq!(shape(&machine.counts()), [3 + 2, 2, 0, 0]);
    }

    #[test]
    fn a_lock_is_busy_with_all_that_its_holder_fetches() {
        let mut machine = machine();
        for data in [64, 128, 192] {
            machine.touch(1, data, 8, Access::Write);
        }
        machine.took(0, 0);
        for data in [64, 128, 192] {
            machine.touch(0, data, 8, Access::Write);
        }
        machine.gave(0, 0);
        machine.touch(1, 64, 8, Access::Write);
        let counts = machine.counts();
        assert_eq!(counts.busiest, [[3, 0, 0], [2, 0, 0], [1, 0, 0], [1, 0, 0]], "the lock first, then its lines");
    }

    #[test]
    fn counts_begin_anew_and_lines_stay() {
        let mut machine = machine();
        machine.touch(0, 8, 8, Access::Write);
        machine.touch(1, 8, 8, Access::Write);
        machine.waits();
        machine.reset();
        assert_eq!(machine.counts(), Counts::default());
        machine.touch(0, 8, 8, Access::Write);
        machine.waits();
        let counts = machine.counts();
        assert_eq!((shape(&counts), counts.lock_waits), ([0, 1, 0, 1], 1));
    }
}
