//! Owners of units: checks that only relatives share a unit, and that no unit holds both data and metadata.
//!
//! Owns the claims. A unit may be in several maps only if these maps are of one family (they descend from one volume)
//! and have the unit at the same place: snapshots share units in this way. Otherwise one volume would read the data of
//! another. A unit that is claimed wrongly stays with the map whose leaf was written last. If both leaves are of the
//! same age, it stays with the older volume.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::model::{Leaf, Model, Node};
use super::report::Totals;
use crate::finding::{Finding, FindingKind, Place};

/// Number of units in a chunk of claims.
const CHUNK: u64 = 1 << 16;

/// Owner of a leaf. Claims refer to it by number.
#[derive(Clone, Copy, Debug)]
struct Owner {
    volume: u32,
    family: u32,
    /// Index of the leaf.
    index: u64,
    generation: u64,
    /// True if more than one map has the leaf.
    shared: bool,
}

/// First claim of each unit: the number of the leaf's owner, and the place in the leaf.
#[derive(Default)]
struct Claims {
    chunks: HashMap<u64, Vec<u64>>,
}

impl Claims {
    /// Returns the first claim of a unit. If there is none, makes this one the first.
    fn claim(&mut self, phys: u64, owner: u32, slot: usize) -> Option<(u32, usize)> {
        let chunk = self.chunks.entry(phys / CHUNK).or_insert_with(|| vec![0; CHUNK as usize]);
        // 0 means no claim, so the number is stored plus one; the place in the leaf begins at bit 40.
        let cell = &mut chunk[(phys % CHUNK) as usize];
        if *cell == 0 {
            *cell = (u64::from(owner) + 1) | (slot as u64) << 40;
            return None;
        }
        Some((((*cell & ((1 << 40) - 1)) - 1) as u32, (*cell >> 40) as usize))
    }

    fn replace(&mut self, phys: u64, owner: u32, slot: usize) {
        if let Some(chunk) = self.chunks.get_mut(&(phys / CHUNK)) {
            chunk[(phys % CHUNK) as usize] = (u64::from(owner) + 1) | (slot as u64) << 40;
        }
    }
}

/// An entry to remove from all maps of a family that have it: family, unit of the volume, unit of the pool.
type Drop = (u32, u64, u64);

/// Examines all claims. Removes from the model what a repair would remove, and adds to the counts in `totals`. Returns
/// the findings.
pub(super) fn settle(model: &mut Model, occupied: &dyn Fn(u64) -> bool, totals: &mut Totals) -> Vec<Finding> {
    let mut owners: Vec<Owner> = Vec::new();
    let mut claims = Claims::default();
    let mut findings = Vec::new();
    let mut drops: Vec<Drop> = Vec::new();
    let mut shared: HashSet<u64> = HashSet::new();
    let mut data = 0;
    let per_leaf = model.geometry.leaf_entries as u64;
    for (owner, leaf) in leaves(model) {
        let number = owners.len() as u32;
        owners.push(owner);
        for (slot, &phys) in leaf.entries.iter().enumerate().filter(|(_, phys)| **phys != 0) {
            totals.entries += 1;
            let unit = owner.index * per_leaf + slot as u64;
            if occupied(phys) {
                findings.push(in_metadata(model, &owner, unit, phys));
                drops.push((owner.family, unit, phys));
                continue;
            }
            if owner.shared {
                shared.insert(phys);
            }
            let Some((other, other_slot)) = claims.claim(phys, number, slot) else {
                data += 1;
                continue;
            };
            let other = owners[other as usize];
            let other_unit = other.index * per_leaf + other_slot as u64;
            if (other.family, other_unit) == (owner.family, unit) {
                shared.insert(phys);
                continue;
            }
            // If both leaves are of one generation, the older volume keeps the unit: its leaves come first.
            let (kept, lost) = if owner.generation > other.generation {
                claims.replace(phys, number, slot);
                ((&owner, unit), (&other, other_unit))
            } else {
                ((&other, other_unit), (&owner, unit))
            };
            findings.push(wrongly(model, kept, lost, phys));
            drops.push((lost.0.family, lost.1, phys));
        }
    }
    totals.data_units = data;
    totals.shared_units = shared.len() as u64;
    take_out(model, &drops);
    findings
}

/// Returns each leaf once per family, with its owner: the first volume that has it.
fn leaves(model: &Model) -> Vec<(Owner, Rc<Leaf>)> {
    let mut node_uses: HashMap<*const Node, u32> = HashMap::new();
    for node in model.volumes.values().flat_map(|vol| vol.map.nodes.values()) {
        *node_uses.entry(Rc::as_ptr(node)).or_default() += 1;
    }
    let mut seen_nodes: HashSet<(u32, *const Node)> = HashSet::new();
    let mut at: HashMap<(u32, *const Leaf), usize> = HashMap::new();
    let mut out: Vec<(Owner, Rc<Leaf>)> = Vec::new();
    for (&volume, vol) in &model.volumes {
        let family = vol.entry.family;
        for (&number, node) in &vol.map.nodes {
            if !seen_nodes.insert((family, Rc::as_ptr(node))) {
                continue;
            }
            let shared = node_uses[&Rc::as_ptr(node)] > 1;
            for (slot, leaf) in node.leaves.iter().enumerate() {
                let Some(leaf) = leaf else { continue };
                if let Some(&known) = at.get(&(family, Rc::as_ptr(leaf))) {
                    out[known].0.shared = true;
                    continue;
                }
                at.insert((family, Rc::as_ptr(leaf)), out.len());
                let index = number * crate::format::INDEX_CHILDREN as u64 + slot as u64;
                out.push((Owner { volume, family, index, generation: leaf.generation, shared }, leaf.clone()));
            }
        }
    }
    out
}

fn name(model: &Model, volume: u32) -> String {
    model.volumes.get(&volume).map_or_else(|| format!("number {volume}"), |vol| vol.entry.name.clone())
}

fn place(model: &Model, owner: &Owner, unit: u64, phys: u64) -> Place {
    let unit_bytes = u64::from(model.geometry.unit_bytes);
    Place {
        what: "allocation unit".into(),
        address: Some(phys * unit_bytes),
        volume: Some(name(model, owner.volume)),
        range: Some((unit * unit_bytes, unit_bytes)),
    }
}

fn in_metadata(model: &Model, owner: &Owner, unit: u64, phys: u64) -> Finding {
    Finding {
        kind: FindingKind::InMetadata,
        place: place(model, owner, unit, phys),
        means: "the volume claims for its data a unit that holds metadata: reading it would give metadata, writing it \
                would destroy the pool"
            .into(),
        repair: Some("Make the range a hole, in the volume and its relatives that have it. Its data is lost".into()),
    }
}

fn wrongly(model: &Model, kept: (&Owner, u64), lost: (&Owner, u64), phys: u64) -> Finding {
    let unit_bytes = u64::from(model.geometry.unit_bytes);
    let (other, at) = (name(model, kept.0.volume), kept.1 * unit_bytes);
    Finding {
        kind: FindingKind::SharedWrongly,
        place: place(model, lost.0, lost.1, phys),
        means: format!(
            "volume '{other}' has the same unit at its byte {at}, and the two may not share it: one of them would read \
             the other's data"
        ),
        repair: Some(format!(
            "Leave it to '{other}', whose claim was written later or who is older; make the range a hole here. Compare \
             both with a backup"
        )),
    }
}

/// Removes the entries from every map of their family that has them.
fn take_out(model: &mut Model, drops: &[Drop]) {
    let geometry = model.geometry;
    let none = [0; crate::format::record::MAX_ENTRY_WORDS];
    for vol in model.volumes.values_mut() {
        for &(_, unit, phys) in drops.iter().filter(|drop| drop.0 == vol.entry.family) {
            let index = unit / geometry.leaf_entries as u64;
            let children = crate::format::INDEX_CHILDREN as u64;
            let leaf = vol
                .map
                .nodes
                .get(&(index / children))
                .and_then(|node| node.leaves[(index % children) as usize].as_ref());
            let has = leaf.is_some_and(|leaf| leaf.entries[(unit % geometry.leaf_entries as u64) as usize] == phys);
            if has {
                vol.map.set(&geometry, unit, 0, &none);
            }
        }
    }
}
