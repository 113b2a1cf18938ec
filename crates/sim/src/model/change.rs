//! Calls that change volumes as a whole.

use std::fmt;

/// Such a call. New volumes say which number they get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new volume, all zero.
    Create {
        /// Name.
        name: String,
        /// Number in the model.
        id: u32,
        /// Bytes.
        size: u64,
        /// Writes make it larger, up to this.
        max: Option<u64>,
    },
    /// A snapshot, or a clone, of a volume or snapshot.
    Copy {
        /// Of which.
        source: String,
        /// Name.
        name: String,
        /// Number in the model.
        id: u32,
        /// Whether it is a snapshot.
        snapshot: bool,
    },
    /// Snapshots of several volumes at one moment: of each its volume, its name, and its number in the model.
    Together {
        /// All of them.
        copies: Vec<(String, String, u32)>,
    },
    /// A volume becomes what a snapshot is.
    Rollback {
        /// The volume.
        name: String,
        /// The snapshot.
        snapshot: String,
    },
    /// Another name, also for its snapshots that have its name.
    Rename {
        /// The old one.
        name: String,
        /// The new one.
        new: String,
    },
    /// Another size.
    Resize {
        /// Which.
        name: String,
        /// Bytes.
        size: u64,
    },
    /// Another largest size.
    Limit {
        /// Which.
        name: String,
        /// Bytes.
        max: u64,
    },
    /// No longer there.
    Delete {
        /// Which.
        name: String,
    },
}

impl Change {
    /// The copies that it makes: of each its source, its name and its number.
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
