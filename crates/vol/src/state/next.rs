//! What the next commit owes: the one state machine between commits.
//!
//! ```text
//!               require                       planned
//!    Records  ----------->  Checkpoint  ------------------>  Records, while the plan is being written
//!                                                              |
//!                           Again { plan, then }  <------------+  it could not be written: keep
//!                                 |
//!                                 +--- begin_again ---> Checkpoint if `then`, else Records, while it is written again
//! ```
//!
//! Owns the states and every transition. Whether a commit may write at all is the [phase](super::phase)'s.
//!
//! - N1: a checkpoint that was begun and is not whole is written again before anything else: its superblock may be on
//!   the device, and what it replaces stays untouched until then.
//! - N2: what was required while a plan is written, or waits to be, is not forgotten: `then`.
//!
//! Called under the pool's lock.

/// What the next commit begins with. `P` is a checkpoint that was planned.
#[derive(Debug, Default)]
pub(crate) enum Next<P> {
    /// Records of what waits; a checkpoint if the journal or the dirty nodes want one.
    #[default]
    Records,
    /// A checkpoint: records cannot tell what changed, or may not follow those that are on the device.
    Checkpoint,
    /// A checkpoint that could not be written; and another one `then`, or records.
    Again {
        /// As it was planned.
        plan: P,
        /// Something has required a checkpoint since.
        then: bool,
    },
}

impl<P> Next<P> {
    /// The next commit must be a checkpoint of what memory has now.
    pub(crate) fn require(&mut self) {
        match self {
            Next::Again { then, .. } => *then = true,
            Next::Records | Next::Checkpoint => *self = Next::Checkpoint,
        }
    }

    /// Whether a checkpoint was required that has not been planned yet.
    pub(crate) fn is_required(&self) -> bool {
        matches!(self, Next::Checkpoint | Next::Again { then: true, .. })
    }

    /// A checkpoint of everything has been planned: it is being written.
    pub(crate) fn planned(&mut self) {
        debug_assert!(self.plan().is_none(), "one that waits is written first (N1)");
        *self = Next::Records;
    }

    /// A plan could not be written: it waits for the next commit.
    pub(crate) fn keep(&mut self, plan: P) {
        let then = self.is_required();
        *self = Next::Again { plan, then };
    }

    /// The plan that waits: it is being written again.
    pub(crate) fn begin_again(&mut self) -> Option<P> {
        match std::mem::take(self) {
            Next::Again { plan, then } => {
                *self = if then { Next::Checkpoint } else { Next::Records };
                Some(plan)
            }
            other => {
                *self = other;
                None
            }
        }
    }

    /// The plan that waits, if one does.
    pub(crate) fn plan(&self) -> Option<&P> {
        match self {
            Next::Again { plan, .. } => Some(plan),
            Next::Records | Next::Checkpoint => None,
        }
    }

    /// The plan that waits, to change what it says.
    pub(crate) fn plan_mut(&mut self) -> Option<&mut P> {
        match self {
            Next::Again { plan, .. } => Some(plan),
            Next::Records | Next::Checkpoint => None,
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn states() -> [Next<u8>; 4] {
        let again = |then| Next::Again { plan: 7, then };
        [Next::Records, Next::Checkpoint, again(false), again(true)]
    }

    fn words(next: &Next<u8>) -> String {
        match next {
            Next::Again { plan, then } => format!("again {plan} then {then}"),
            other => format!("{other:?}").to_lowercase(),
        }
    }

    fn after(event: impl Fn(&mut Next<u8>)) -> [String; 4] {
        states().map(|mut next| {
            event(&mut next);
            words(&next)
        })
    }

    #[test]
    fn every_transition() {
        let (checkpoint, then) = ("checkpoint", "again 7 then true");
        assert_eq!(after(Next::require), [checkpoint, checkpoint, then, then]);
        assert_eq!(after(|next| next.keep(9)), ["again 9 then false", "again 9 then true"].repeat(2)[..]);
        assert_eq!(after(|next| _ = next.begin_again()), ["records", checkpoint, "records", checkpoint]);
        for (mut next, (required, plan)) in
            states().into_iter().zip([(false, None), (true, None), (false, Some(7)), (true, Some(7))])
        {
            assert_eq!((next.is_required(), next.plan().copied()), (required, plan));
            assert_eq!((next.plan_mut().copied(), next.begin_again()), (plan, plan));
            assert_eq!(next.is_required(), required, "what was required is not forgotten");
            next.planned();
            assert_eq!(words(&next), "records");
        }
    }

    #[test]
    #[should_panic(expected = "written first")]
    fn a_plan_that_waits_is_not_forgotten() {
        Next::Again { plan: 1, then: false }.planned();
    }
}
