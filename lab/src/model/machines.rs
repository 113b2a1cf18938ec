//! Published machines: the time that a cache line takes from one core to another.
//!
//! Owns the constants. They were fixed before any prediction was computed from them, and none is fitted. A change of a
//! constant must name the publication that the new value comes from.
//!
//! All figures are from one publication, so that one method measured them: N. Viennot, "Measuring CPU core-to-core
//! latency", <https://github.com/nviennot/core-to-core-latency> (README at commit 0dddf509, 2023). It gives the median
//! time of a message from one core to another by compare-and-exchange on one cache line. One message is one transfer of
//! a line.

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Name in the output and in the counts.
    pub id: &'static str,
    /// Description for readers.
    pub what: &'static str,
    /// Number of hardware threads that share a last-level cache.
    pub complex: usize,
    /// Number of hardware threads of a socket.
    pub socket: usize,
    /// Time of a hop from the same complex, from the same socket, and from another socket.
    pub hop_ns: [f64; 3],
    /// Numbers of cores for which a rate is predicted.
    pub cores: &'static [u32],
}

/// Factor by which hops may be shorter or longer than published. A band's upper end is therefore at most twice its
/// lower end. The medians in one publication for machines of one make differ by about as much (107 ns and 200 ns within
/// the two sockets of one EPYC; 108 to 136 ns between sockets of Xeons).
pub const BAND: f64 = std::f64::consts::SQRT_2;

/// Two sockets of IBM Power7. Of the machines with figures it is the nearest to the one of the mailing-list thread on
/// in-flight counters ("a Power system", 80 queues and 80 jobs). With 80 threads each socket has 40 of them.
pub const POWER: Machine = Machine {
    id: "power",
    what: "a Power system of two sockets with 40 hardware threads each; hops as measured on two IBM Power7 (173 ns \
           within a socket, 443 ns between two)",
    complex: 40,
    socket: 40,
    hop_ns: [173.0, 173.0, 443.0],
    cores: &[1, 2, 4, 8, 16, 32, 40, 64, 80],
};

/// A current server with two sockets.
pub const EPYC: Machine = Machine {
    id: "epyc",
    what: "a server of two AMD EPYC 7R13, 48 cores each (23 ns within a complex of 8 cores, 107 ns within a socket, \
           197 ns between two)",
    complex: 8,
    socket: 48,
    hop_ns: [23.0, 107.0, 197.0],
    cores: &[1, 2, 4, 8, 16, 32, 48, 64, 96],
};

/// The machine of the mailing-list thread on io-wq: one EPYC 9654P with 96 cores, with the hops of the measured EPYC.
pub const EPYC_ONE: Machine = Machine {
    id: "epyc-one-socket",
    what: "one AMD EPYC of 96 cores in complexes of 8, as the thread's 9654P; hops as measured on an EPYC 7R13 (23 ns \
           within a complex, 107 ns within the socket)",
    complex: 8,
    socket: 96,
    hop_ns: [23.0, 107.0, 107.0],
    cores: &[2, 4, 8, 16, 32, 64, 96],
};

pub const ALL: [Machine; 3] = [POWER, EPYC, EPYC_ONE];
