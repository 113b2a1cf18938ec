//! The state of a handshake as plain data, for the process that takes over the connection.
//!
//! Owns [`HandshakeState`] and its checks. Does not own the bytes of the client that were not consumed, nor those that
//! were not sent. Called by the owner of a connection.
//!
//! Invariant H4: [`Handshake::restored`] returns only handshakes that the messages of a client can lead to.

use serde::{Deserialize, Serialize};

use super::{Asked, FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, Handshake, MAX_SKIPPED_BYTES, Mode, State, Tls};
use crate::catalog::MAX_CONTEXTS;

/// The next input that a handshake expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// The flags of the client.
    Flags,
    /// An option.
    Option,
    /// The rest of the data of an option that was refused.
    Skip { left: u32 },
    /// Nothing: the handshake is over.
    Ended,
}

/// The state of a handshake without TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandshakeState {
    pub stage: Stage,
    /// Handshake flags of the client.
    pub client_flags: u16,
    /// Format of replies that was negotiated so far.
    pub mode: Mode,
    /// The export for which metadata contexts were selected, and their numbers. Both are those of the catalog.
    pub contexts: Option<(u32, Vec<u64>)>,
    /// The export whose block sizes the client requested.
    pub block_sizes: Option<u32>,
    /// Number of options that the client has sent.
    pub options: u32,
}

impl HandshakeState {
    /// Replaces the ids of exports by those of another catalog. If `id` returns None, that export no longer exists, and
    /// what the client selected for it is dropped.
    #[must_use]
    pub fn map_exports(self, id: impl Fn(u32) -> Option<u32>) -> HandshakeState {
        HandshakeState {
            contexts: self.contexts.and_then(|(export, numbers)| Some((id(export)?, numbers))),
            block_sizes: self.block_sizes.and_then(id),
            ..self
        }
    }

    /// Replaces the numbers of metadata contexts by those of another catalog. `number` gets the id of the export that
    /// is in the state now. If it returns None for a context, the whole selection is dropped: the client knows each
    /// context by its place in the list.
    #[must_use]
    pub fn map_contexts(self, number: impl Fn(u32, u64) -> Option<u64>) -> HandshakeState {
        let contexts = self.contexts.and_then(|(export, numbers)| {
            let numbers = numbers.into_iter().map(|old| number(export, old)).collect::<Option<Vec<_>>>()?;
            Some((export, numbers))
        });
        HandshakeState { contexts, ..self }
    }

    /// Returns true if the messages of a client can lead to this state.
    fn is_possible(&self) -> bool {
        let known_flags = self.client_flags & !(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES) == 0;
        let contexts = match &self.contexts {
            Some((_, numbers)) => self.mode != Mode::Simple && numbers.len() <= MAX_CONTEXTS,
            None => true,
        };
        let chose_nothing = self.mode == Mode::Simple && self.contexts.is_none() && self.block_sizes.is_none();
        let is_new = chose_nothing && self.options == 0;
        // Without FIXED_NEWSTYLE, the first option is the last one.
        let takes_options = self.client_flags & FLAG_FIXED_NEWSTYLE != 0;
        let stage = match self.stage {
            Stage::Flags => is_new && self.client_flags == 0,
            Stage::Option => is_new || (takes_options && self.options != 0),
            Stage::Skip { left } => takes_options && self.options != 0 && (1..=MAX_SKIPPED_BYTES).contains(&left),
            Stage::Ended => chose_nothing || self.options != 0,
        };
        known_flags && contexts && stage
    }
}

impl Handshake {
    /// Returns the state for another process. Returns None if TLS has started or is about to.
    #[must_use]
    pub fn state(&self) -> Option<HandshakeState> {
        let stage = match self.state {
            State::Flags => Stage::Flags,
            State::Option => Stage::Option,
            State::Skip { left } => Stage::Skip { left },
            State::Ended => Stage::Ended,
            State::Tls => return None,
        };
        if self.tls == Tls::Started {
            return None;
        }
        let Asked { mode, contexts, block_sizes } = self.asked.clone();
        Some(HandshakeState {
            stage,
            client_flags: self.client_flags,
            mode,
            contexts,
            block_sizes,
            options: self.options,
        })
    }

    /// Continues a handshake of another process. `tls` is the requirement of this process. Returns None if the state is
    /// impossible (H4).
    #[must_use]
    pub fn restored(state: &HandshakeState, tls: Tls) -> Option<Handshake> {
        if tls == Tls::Started || !state.is_possible() {
            return None;
        }
        let HandshakeState { stage, client_flags, mode, contexts, block_sizes, options } = state.clone();
        let state = match stage {
            Stage::Flags => State::Flags,
            Stage::Option => State::Option,
            Stage::Skip { left } => State::Skip { left },
            Stage::Ended => State::Ended,
        };
        Some(Handshake { state, client_flags, asked: Asked { mode, contexts, block_sizes }, options, tls })
    }
}

#[cfg(test)]
mod tests;
