//! State machine of the next commit: the work with which it must begin.
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
//! Owns the states and every transition. The [phase](super::phase) decides whether writing is permitted at all.
//!
//! - N1: a checkpoint that was begun but not completed is written again before anything else: its superblock may be on
//!   the device, and the pages that it replaces stay untouched until it is complete.
//! - N2: if a checkpoint is required while a plan is being written, or waits to be written, `then` records that.
//!
//! Called under the pool's lock.

/// First work of the next commit. `P` is a planned checkpoint.
#[derive(Debug, Default)]
pub(crate) enum Next<P> {
    /// Write records of the waiting changes, or a checkpoint if the journal or the dirty nodes require one.
    #[default]
    Records,
    /// Write a checkpoint: records cannot express the changes, or must not follow the records on the device.
    Checkpoint,
    /// Write the plan of a checkpoint whose write failed again. Afterwards write another checkpoint if `then` is true,
    /// else records.
    Again {
        plan: P,
        /// True if another checkpoint was required since.
        then: bool,
    },
}

impl<P> Next<P> {
    /// Requires a checkpoint of the present state.
    pub(crate) fn require(&mut self) {
        match self {
            Next::Again { then, .. } => *then = true,
            Next::Records | Next::Checkpoint => *self = Next::Checkpoint,
        }
    }

    /// Returns true if a required checkpoint has not been planned yet.
    pub(crate) fn is_required(&self) -> bool {
        matches!(self, Next::Checkpoint | Next::Again { then: true, .. })
    }

    /// Called when a checkpoint of the present state has been planned and is being written.
    pub(crate) fn planned(&mut self) {
        debug_assert!(self.plan().is_none(), "one that waits is written first (N1)");
        *self = Next::Records;
    }

    /// Keeps, for the next commit, a plan whose write failed.
    pub(crate) fn keep(&mut self, plan: P) {
        let then = self.is_required();
        *self = Next::Again { plan, then };
    }

    /// Takes the kept plan to write it again.
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

    pub(crate) fn plan(&self) -> Option<&P> {
        match self {
            Next::Again { plan, .. } => Some(plan),
            Next::Records | Next::Checkpoint => None,
        }
    }

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
