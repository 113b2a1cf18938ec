//! The order of an upgrade's steps, for each of the two processes, apart from their work.
//!
//! Owns which step follows which. `give` and `take` do the steps of a real daemon, and the simulator of upgrades does
//! those of a simulated one: both ask here what comes next. The steps before these (the new process says who it is, and
//! reads its configuration) change nothing.

/// A step of the old process, which has everything at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Give {
    /// Begin no request any more, and wait until those under way have ended.
    Suspend,
    /// Go on as before, and tell the new process. The last step.
    Resume,
    /// Take everything apart: collect the clients, close the pools, and keep the descriptors.
    TakeApart,
    /// Pass state and descriptors over.
    Pass,
    /// Wait until the new process says that it has taken everything.
    Wait,
    /// Shut the connection down, so that the new process can say nothing any more, and look whether it has said in the
    /// last moment that it has taken everything.
    ShutAndLook,
    /// End the new process.
    EndNew,
    /// Open everything again, and go on as before. The last step.
    PutTogether,
    /// Leave everything to the new process. The last step.
    Leave,
    /// Touch nothing any more, because the new process cannot be ended. The last step.
    Abandon,
}

impl Give {
    /// Returns the next step after this one has ended well, or has failed; `None` after the last one.
    #[must_use]
    pub fn next(self, ended_well: bool) -> Option<Give> {
        Some(match (self, ended_well) {
            (Give::Suspend, true) => Give::TakeApart,
            (Give::Suspend, false) => Give::Resume,
            (Give::TakeApart, true) => Give::Pass,
            // Nothing was passed over, so nobody else can have it.
            (Give::TakeApart, false) => Give::Abandon,
            (Give::Pass, true) => Give::Wait,
            (Give::Wait, true) | (Give::ShutAndLook, true) => Give::Leave,
            (Give::Pass | Give::Wait, false) => Give::ShutAndLook,
            (Give::ShutAndLook, false) => Give::EndNew,
            (Give::EndNew, true) => Give::PutTogether,
            (Give::EndNew, false) => Give::Abandon,
            (Give::Resume | Give::PutTogether | Give::Leave | Give::Abandon, _) => return None,
        })
    }
}

/// A step of the new process, which has nothing at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Take {
    /// Receive state and descriptors.
    Receive,
    /// Open everything, and serve nobody.
    Open,
    /// Close what was opened, and tell the old process. The last step.
    GiveUp,
    /// Tell the old process that everything was taken.
    Say,
    /// Wait until the old process has ended, which has shut the connection down, or died.
    OldEnds,
    /// Serve: everything belongs to this process. The last step.
    Own,
    /// End without closing anything, because that writes to the pools. The last step.
    Die,
}

impl Take {
    /// Returns the next step after this one has ended well, or has failed; `None` after the last one.
    #[must_use]
    pub fn next(self, ended_well: bool) -> Option<Take> {
        Some(match (self, ended_well) {
            (Take::Receive, true) => Take::Open,
            (Take::Open, true) => Take::Say,
            (Take::Receive | Take::Open, false) => Take::GiveUp,
            (Take::Say, true) | (Take::OldEnds, true) => Take::Own,
            (Take::Say, false) => Take::OldEnds,
            (Take::OldEnds, false) => Take::Die,
            (Take::GiveUp | Take::Own | Take::Die, _) => return None,
        })
    }
}
