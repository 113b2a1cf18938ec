//! Calls that change volumes as a whole.

use std::fmt;

/// A call that changes volumes as a whole. The `id` of a new volume is chosen by the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Creates a volume, all zero.
    Create {
        name: String,
        /// Number in the model.
        id: u32,
        /// Size in bytes.
        size: u64,
        /// For a volume that grows, the maximum size.
        max: Option<u64>,
    },
    /// Makes a snapshot or a clone of a volume or snapshot.
    Copy {
        source: String,
        name: String,
        /// Number in the model.
        id: u32,
        snapshot: bool,
    },
    /// Makes snapshots of several volumes at one moment.
    Together {
        /// For each snapshot the source, its name and its number in the model.
        copies: Vec<(String, String, u32)>,
    },
    /// Replaces a volume's contents by those of a snapshot.
    Rollback {
        name: String,
        snapshot: String,
    },
    /// Renames a volume, together with the snapshots whose names begin with its name.
    Rename {
        /// The old name.
        name: String,
        /// The new name.
        new: String,
    },
    Resize {
        name: String,
        /// New size in bytes.
        size: u64,
    },
    /// Changes the maximum size of a volume that grows.
    Limit {
        name: String,
        /// New maximum size in bytes.
        max: u64,
    },
    Delete {
        name: String,
    },
}

impl Change {
    /// Returns the copies that the call makes, each with its source, name and number.
    #[must_use]
    pub fn copies(&self) -> Vec<(&str, &str, u32)> {
        match self {
            Change::Copy { source, name, id, .. } => vec![(source, name, *id)],
            Change::Together { copies } => copies.iter().map(|(source, name, id)| (&**source, &**name, *id)).collect(),
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Create { name, id, size, max } => {
                write!(out, "create '{name}' (volume {id}), {size} bytes")?;
                max.map_or(Ok(()), |max| write!(out, ", growing to {max}"))
            }
            Change::Limit { name, max } => write!(out, "let '{name}' grow to {max} bytes"),
            Change::Copy { source, name, id, snapshot: true } => {
                write!(out, "snapshot '{source}' as '{name}' (volume {id})")
            }
            Change::Copy { source, name, id, .. } => write!(out, "clone '{source}' as '{name}' (volume {id})"),
            Change::Together { copies } => {
                write!(out, "at one moment snapshot")?;
                copies.iter().try_for_each(|(source, name, id)| write!(out, " '{source}' as '{name}' (volume {id})"))
            }
            Change::Rollback { name, snapshot } => write!(out, "roll '{name}' back to '{snapshot}'"),
            Change::Rename { name, new } => write!(out, "rename '{name}' to '{new}'"),
            Change::Resize { name, size } => write!(out, "resize '{name}' to {size} bytes"),
            Change::Delete { name } => write!(out, "delete '{name}'"),
        }
    }
}
