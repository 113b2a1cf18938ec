//! The superblock: description of the pool, and address of its newest checkpoint.
//!
//! Owns encoding and decoding of one slot, and the choice between the two ([`choose`]). A checkpoint writes the slot
//! that [`Superblock::slot`] names, which is not the newest one.
//!
//! Invariants:
//! - S1: a decoded superblock is consistent in itself: every number is within the bounds of
//!   [`format`](mod@crate::format), journal and table root lie inside the pool. Callers need not check again.
//! - S2: generations alternate between the slots: an even one lies in slot 0, an odd one in slot 1.
//! - S3: an opening that [keeps twins](Superblock::keeps_twins) makes a checkpoint's second superblock durable before
//!   it acknowledges anything that only this checkpoint contains, and before it overwrites anything that the previous
//!   checkpoint needs. So either superblock, together with the journal, has all that was acknowledged.
//! - S4: the flush of a checkpoint's second superblock makes the checkpoint's copies durable too. So a copy belongs to
//!   the newest checkpoint, or to the previous one as long as nothing depends on the newest alone (S3). Together with
//!   the journal it has all that was acknowledged, like either superblock.
//! - S5: a close makes the copies durable before its second superblock. So the copies of a pool whose
//!   [close is complete](Superblock::close_is_complete) belong to this close, and any others are damage.

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::format::block::{Block, Head, open, require_zero_tail, seal};
use crate::format::damage::{Damage, require};
pub use crate::format::geometry::Geometry;
use crate::format::page::PageRef;
use crate::format::settings::{Checksum, LowWater};
use crate::format::*;

/// Description of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Identity of the pool.
    pub pool: [u8; 16],
    /// Generation of the checkpoint; its parity gives the slot (S2).
    pub generation: u64,
    /// Features of the pool that a program may ignore. The upper bits hold the number of [`Superblock::keep_twins`].
    pub compat: u32,
    /// Features that a program must know to write the pool; see [`Superblock::unknown_ro_features`].
    pub ro_compat: u32,
    /// True if the pool was closed, so that there is nothing to replay.
    pub clean: bool,
    /// Bytes of an allocation unit.
    pub unit_bytes: u32,
    /// Kind of checksum of the data.
    pub checksum: Checksum,
    /// True if bad blocks are marked. Set in pools with checksums that a program with this feature made or
    /// [upgraded](crate::Pool::upgrade).
    pub marks: bool,
    /// True if new volumes get identities and may be interim. Set in pools that a program with this feature made or
    /// upgraded.
    pub identities: bool,
    /// Number of allocation units of the pool.
    pub total_units: u64,
    /// Number of blocks of the journal, which begins at [`JOURNAL_START`].
    pub journal_blocks: u32,
    /// Number that the next volume gets.
    pub next_volume: u32,
    /// Number of times the pool was opened for writing. Journal blocks of another incarnation are not replayed.
    pub incarnation: u64,
    /// Sequence number of the first journal block to replay.
    pub replay_seq: u64,
    /// Root of the volume table.
    pub table: PageRef,
    /// Level of `table`.
    pub table_level: u16,
    /// Number of volumes in the table.
    pub volumes: u32,
    /// Time of creation in seconds since 1970.
    pub created: u64,
    /// Start and length of each member in bytes, in order; the first begins at 0.
    pub members: Vec<(u64, u64)>,
    /// Generation of each member's label; 0 for the first member, which has none.
    pub labels: [u64; MAX_MEMBERS],
    /// Root of the tree of data checksums.
    pub sums: PageRef,
    /// Level of `sums`.
    pub sums_level: u16,
    /// Low-water mark: free space below which the pool is low.
    pub low_water: LowWater,
    /// Volumes that may have lost acknowledged writes.
    pub lost: Lost,
    /// Random number of the opening that wrote the superblock. All zero in a pool of a program without this feature
    /// that was not [upgraded](crate::Pool::upgrade).
    pub owner: [u8; 16],
    /// Lowest checkpoint that the label of each member but the first can name: a label with an earlier one is of an
    /// older copy of the member. 0 as long as labels name no checkpoints.
    pub labels_at: u64,
    /// Addresses of the superblock's copies; 0 in a pool without copies.
    pub copies: [u64; COPIES],
    /// True if each page of the trees has a second copy.
    pub paired: bool,
    /// First page of kept records, about entries of maps whose pages are damaged; none if there are no such records.
    pub kept: PageRef,
}

/// Volumes that may have lost acknowledged data, because a flush failed; see [`loss`](crate::engine::loss).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// All volumes with numbers below this one count as lost. 0 unless the list was too short for all lost volumes.
    below: u32,
    /// Other volumes that may have lost data, ascending.
    volumes: Vec<u32>,
}

impl Lost {
    /// Returns true if no volume may have lost data.
    pub fn is_empty(&self) -> bool {
        *self == Lost::default()
    }

    /// Returns true if `volume` may have lost data.
    pub fn has(&self, volume: u32) -> bool {
        volume < self.below || self.volumes.binary_search(&volume).is_ok()
    }

    /// Returns the list with the volumes `others` added.
    #[must_use]
    pub fn with(&self, others: impl Iterator<Item = u32>) -> Lost {
        let mut volumes = self.volumes.clone();
        volumes.extend(others.filter(|id| *id >= self.below));
        volumes.sort_unstable();
        volumes.dedup();
        if volumes.len() <= MAX_LOST {
            return Lost { below: self.below, volumes };
        }
        // The list is full. To miss no volume, all volumes below the last `MAX_LOST` ones count as lost, also those
        // that were not listed.
        let kept = volumes.split_off(volumes.len() - MAX_LOST);
        Lost { below: volumes.last().map_or(self.below, |last| last + 1), volumes: kept }
    }

    fn from_disk(body: &SuperblockBody) -> Result<Lost, Damage> {
        let count = body.lost_count.get();
        require(count <= MAX_LOST as u32, "lost_count", count, "is more than 256")?;
        let (used, rest) = body.lost.split_at(count as usize);
        require(rest.iter().all(|id| id.get() == 0), "lost", count, "entries follow, which must be 0")?;
        let lost = Lost { below: body.lost_below.get(), volumes: used.iter().map(|id| id.get()).collect() };
        let ascending = lost.volumes.is_sorted_by(|a, b| a < b);
        let first = lost.volumes.first().copied().unwrap_or(u32::MAX);
        require(ascending && first >= lost.below.max(1), "lost", first, "is not in order")?;
        let flagged = body.incompat.get() & INCOMPAT_LOST != 0;
        require(flagged != lost.is_empty(), "lost_count", count, "contradicts the features")?;
        Ok(lost)
    }
}

/// Distance between possible places of copies: they lie at multiples of it, so that a search for them reads few blocks.
/// Every allocation unit divides it. Copies of a first member smaller than [`LEAST_ON_GRID`] lie at the beginning of
/// any unit.
pub const COPY_GRID: u64 = 1 << 20;
/// Smallest first member whose copies lie at multiples of [`COPY_GRID`].
pub const LEAST_ON_GRID: u64 = 32 << 20;
/// Smallest number of units of a first member that gets copies. Each copy takes a whole unit.
pub const LEAST_COPIED: u64 = 128;

/// Returns the addresses of the copies for a first member of `first_member` bytes: the middle, and near the end, before
/// the area that other formats use at the end of a disk (the second GPT, a superblock of md or ZFS). Copies of a small
/// member lie in the middle and at seven eighths. Returns `None` if copies would take too much of the member.
pub fn copy_places(first_member: u64, unit_bytes: u64) -> Option<[u64; COPIES]> {
    if first_member >= LEAST_ON_GRID {
        let whole = first_member / COPY_GRID;
        // The second copy begins 2 to 3 MiB before the end of the member.
        return Some([whole / 2 * COPY_GRID, (whole - 2) * COPY_GRID]);
    }
    let units = first_member / unit_bytes;
    (units >= LEAST_COPIED).then(|| [units / 2 * unit_bytes, units / 8 * 7 * unit_bytes])
}

impl Superblock {
    /// Encodes the superblock for the slot of its generation. Returns the address of the slot.
    pub fn encode(&self, block: &mut Block) -> u64 {
        self.encode_at(block, kind::SUPERBLOCK, self.slot())
    }

    /// Encodes the copies. Returns each with its address.
    pub fn encode_copies(&self) -> Vec<(u64, Block)> {
        let places = self.copies.into_iter().filter(|at| *at != 0);
        let encode = |at| {
            let mut block = [0; BLOCK];
            (self.encode_at(&mut block, kind::SUPERBLOCK_COPY, at), block)
        };
        places.map(encode).collect()
    }

    /// Encodes the superblock as a loose root at `address`, which a search of the whole device can find.
    pub fn encode_root(&self, block: &mut Block, address: u64) {
        self.encode_at(block, kind::ROOT, address);
    }

    /// Decodes a loose root that was read from `address`.
    pub fn decode_root(block: &Block, address: u64, device_bytes: u64) -> Result<Superblock, Damage> {
        Superblock::decode_at(block, kind::ROOT, address, device_bytes)
    }

    /// Returns the units in which the copies lie.
    pub fn copy_units(&self) -> impl Iterator<Item = u64> {
        let unit = u64::from(self.unit_bytes);
        self.copies.into_iter().filter(|at| *at != 0).map(move |at| at / unit)
    }

    fn features(&self) -> u32 {
        let has_sums = self.checksum == Checksum::Crc32c;
        let all = [
            (has_sums, INCOMPAT_SUMS),
            (has_sums && self.marks, INCOMPAT_MARKS),
            (self.identities, INCOMPAT_IDENTITIES),
            (!self.lost.is_empty(), INCOMPAT_LOST),
            (self.owner != [0; 16], INCOMPAT_OWNERS),
            (self.copies != [0; COPIES], INCOMPAT_COPIES),
            (!self.copies.iter().all(|at| at.is_multiple_of(COPY_GRID)), INCOMPAT_OFF_GRID),
            (self.paired, INCOMPAT_PAIRS),
            (!self.kept.is_none(), INCOMPAT_KEPT),
        ];
        all.into_iter().filter(|(is_there, _)| *is_there).fold(0, |bits, (_, bit)| bits | bit)
    }

    fn encode_at(&self, block: &mut Block, kind: u16, address: u64) -> u64 {
        let mut body = SuperblockBody::new_zeroed();
        body.compat = self.compat.into();
        body.ro_compat = self.ro_compat.into();
        body.state = (if self.clean { STATE_CLEAN } else { 0 }).into();
        body.unit_bytes = self.unit_bytes.into();
        body.incompat = self.features().into();
        body.sums = (if self.checksum == Checksum::Crc32c { SUMS_CRC32C } else { SUMS_NONE }).into();
        body.lost_below = self.lost.below.into();
        body.lost_count = (self.lost.volumes.len() as u32).into();
        body.lost.iter_mut().zip(&self.lost.volumes).for_each(|(slot, id)| *slot = (*id).into());
        // A decoder refuses `labels_at` without an owner.
        if self.owner != [0; 16] {
            body.owner = self.owner;
            body.labels_at = self.labels_at.into();
        }
        body.copies = self.copies.map(|at| at.into());
        let (kept, kept_second) = self.kept.to_disk();
        (body.kept, body.kept_second) = (kept, kept_second.into());
        body.total_units = self.total_units.into();
        body.journal_start = JOURNAL_START.into();
        body.journal_blocks = self.journal_blocks.into();
        body.next_volume = self.next_volume.into();
        body.incarnation = self.incarnation.into();
        body.replay_seq = self.replay_seq.into();
        let (table, table_second) = self.table.to_disk();
        (body.table, body.table_second) = (table, table_second.into());
        body.table_level = u32::from(self.table_level).into();
        body.volumes = self.volumes.into();
        body.members = (self.members.len() as u32).into();
        body.created = self.created.into();
        for (slot, &(start, len)) in body.member.iter_mut().zip(&self.members) {
            *slot = Member { start: start.into(), len: len.into() };
        }
        for (slot, generation) in body.labels.iter_mut().zip(self.labels) {
            *slot = generation.into();
        }
        let (sums, sums_second) = self.sums.to_disk();
        (body.sums_root, body.sums_second) = (sums, sums_second.into());
        body.sums_level = u32::from(self.sums_level).into();
        match self.low_water {
            LowWater::Off => {}
            LowWater::Bytes(bytes) => body.low_water = bytes.into(),
            LowWater::Percent(percent) => body.low_water_percent = percent.into(),
        }
        block.fill(0);
        block[HEADER..HEADER + size_of::<SuperblockBody>()].copy_from_slice(body.as_bytes());
        let head = Head {
            kind,
            level: 0,
            pool: self.pool,
            generation: self.generation,
            address,
            index: 0,
            owner: 0,
            count: self.volumes,
        };
        seal(block, &head);
        head.address
    }

    /// Decodes the superblock in a block that was read from `address`. The pool must fit `device_bytes`.
    pub fn decode(block: &Block, address: u64, device_bytes: u64) -> Result<Superblock, Damage> {
        let sb = Superblock::decode_at(block, kind::SUPERBLOCK, address, device_bytes)?;
        require(sb.slot() == address, "generation", sb.generation, "does not belong into this slot")?;
        Ok(sb)
    }

    /// Decodes the copy of a superblock in a block that was read from `address`.
    pub fn decode_copy(block: &Block, address: u64, device_bytes: u64) -> Result<Superblock, Damage> {
        let sb = Superblock::decode_at(block, kind::SUPERBLOCK_COPY, address, device_bytes)?;
        require(sb.copies.contains(&address), "copies", address, "has no copy by itself")?;
        Ok(sb)
    }

    fn decode_at(block: &Block, kind: u16, address: u64, device_bytes: u64) -> Result<Superblock, Damage> {
        let (head, _) = open(block, kind, None, address)?;
        let (body, _) = SuperblockBody::ref_from_prefix(&block[HEADER..]).expect("a block has room for it");
        // Features come before all other fields: an unknown feature may use bytes that must be zero without it.
        let unknown = body.incompat.get() & !KNOWN_INCOMPAT;
        if unknown != 0 {
            return Err(Damage::Features { bits: unknown });
        }
        require_zero_tail(&block[HEADER..], size_of::<SuperblockBody>())?;
        require(head.level == 0 && head.owner == 0 && head.index == 0, "index", head.index, "must be 0")?;
        require(head.count == body.volumes.get(), "count", head.count, "is not the number of volumes")?;
        require(head.pool != [0; 16], "pool", 0u64, "names no pool")?;
        let sb = Superblock {
            pool: head.pool,
            generation: head.generation,
            compat: body.compat.get(),
            ro_compat: body.ro_compat.get(),
            clean: body.state.get() == STATE_CLEAN,
            unit_bytes: body.unit_bytes.get(),
            checksum: checksum_kind(body)?,
            marks: body.incompat.get() & INCOMPAT_MARKS != 0,
            identities: body.incompat.get() & INCOMPAT_IDENTITIES != 0,
            total_units: body.total_units.get(),
            journal_blocks: body.journal_blocks.get(),
            next_volume: body.next_volume.get(),
            incarnation: body.incarnation.get(),
            replay_seq: body.replay_seq.get(),
            table: PageRef::from_disk(&body.table, body.table_second.get()),
            table_level: u16::try_from(body.table_level.get())
                .map_err(|_| Damage::field("table_level", body.table_level.get(), "is beyond the highest level"))?,
            volumes: body.volumes.get(),
            created: body.created.get(),
            members: members(body)?,
            labels: body.labels.map(|generation| generation.get()),
            sums: PageRef::from_disk(&body.sums_root, body.sums_second.get()),
            sums_level: u16::try_from(body.sums_level.get())
                .map_err(|_| Damage::field("sums_level", body.sums_level.get(), "is beyond the highest level"))?,
            low_water: low_water(body)?,
            lost: Lost::from_disk(body)?,
            owner: body.owner,
            labels_at: body.labels_at.get(),
            copies: body.copies.map(|at| at.get()),
            paired: body.incompat.get() & INCOMPAT_PAIRS != 0,
            kept: PageRef::from_disk(&body.kept, body.kept_second.get()),
        };
        require(body.reserved_kept.get() == 0, "reserved_kept", body.reserved_kept.get(), "must be 0")?;
        let flagged = body.incompat.get() & INCOMPAT_KEPT != 0;
        require(flagged != sb.kept.is_none(), "kept", body.incompat.get(), "contradicts the features")?;
        require(body.reserved_end.get() == 0, "reserved_end", body.reserved_end.get(), "must be 0")?;
        let flagged = body.incompat.get() & INCOMPAT_COPIES != 0;
        require(flagged == (sb.copies != [0; COPIES]), "copies", body.incompat.get(), "contradicts the features")?;
        let flagged = body.incompat.get() & INCOMPAT_OFF_GRID != 0;
        let on_grid = sb.copies.iter().all(|at| at.is_multiple_of(COPY_GRID));
        require(flagged != on_grid, "copies", body.incompat.get(), "contradicts the features")?;
        let flagged = body.incompat.get() & INCOMPAT_OWNERS != 0;
        require(flagged == (sb.owner != [0; 16]), "owner", body.incompat.get(), "contradicts the features")?;
        require(body.reserved.get() == 0, "reserved", body.reserved.get(), "must be 0")?;
        require(body.state.get() & !STATE_CLEAN == 0, "state", body.state.get(), "has unknown bits")?;
        require(body.journal_start.get() == JOURNAL_START, "journal_start", body.journal_start.get(), "is not 8192")?;
        sb.validate(device_bytes)?;
        Ok(sb)
    }

    /// Verifies S1.
    fn validate(&self, device_bytes: u64) -> Result<(), Damage> {
        let unit = self.unit_bytes;
        let good_unit = unit.is_power_of_two() && (MIN_UNIT_BYTES..=MAX_UNIT_BYTES).contains(&unit);
        require(good_unit, "unit_bytes", unit, "is no power of two from 4 KiB to 1 MiB")?;
        let blocks = self.journal_blocks;
        let good_journal = (MIN_JOURNAL_BLOCKS..=MAX_JOURNAL_BLOCKS).contains(&blocks);
        require(good_journal, "journal_blocks", blocks, "is less than 16 or more than 16384")?;
        require(self.total_units <= MAX_POOL_UNITS, "total_units", self.total_units, "is more than a pool can have")?;
        require(
            self.total_units <= self.most_units(),
            "total_units",
            self.total_units,
            "is more than a pool with two copies has",
        )?;
        let geometry = self.geometry();
        let fits = self.total_units > geometry.first_unit && geometry.bytes() <= device_bytes;
        require(
            fits,
            "total_units",
            self.total_units,
            "does not fit the device: it has shrunk, or a member is missing",
        )?;
        require(self.incarnation > 0, "incarnation", self.incarnation, "must not be 0")?;
        require(self.next_volume > 0, "next_volume", self.next_volume, "must not be 0")?;
        require(self.volumes <= MAX_VOLUMES, "volumes", self.volumes, "is more than a pool can have")?;
        require(self.table_level <= MAX_LEVEL, "table_level", self.table_level, "is beyond the highest level")?;
        let has_table = !self.table.is_none();
        require(has_table == (self.volumes > 0), "table", self.table.address, "does not fit the number of volumes")?;
        require(has_table || self.table_level == 0, "table_level", self.table_level, "has no page")?;
        geometry.require_page(self.table, "table")?;
        let kept = self.checksum == Checksum::Crc32c;
        require(kept || !self.marks, "incompat", INCOMPAT_MARKS, "has marks without checksums")?;
        let has_sums = !self.sums.is_none();
        require(!has_sums || kept, "sums_root", self.sums.address, "has no kind")?;
        let level = self.sums_level;
        require(level <= MAX_LEVEL && (level > 0) == has_sums, "sums_level", level, "does not fit the root")?;
        geometry.require_page(self.sums, "sums_root")?;
        geometry.require_page(self.kept, "kept")?;
        require(self.owner != [0; 16] || self.labels_at == 0, "labels_at", self.labels_at, "has no owner")?;
        let most = self.generation.saturating_add(1);
        require(self.labels_at <= most, "labels_at", self.labels_at, "is of a checkpoint that is to come")?;
        self.validate_copies(&geometry)?;
        self.validate_members(&geometry)
    }

    /// Verifies that each copy lies at the beginning of a usable unit of the first member, and no two at the same
    /// place.
    fn validate_copies(&self, geometry: &Geometry) -> Result<(), Damage> {
        let [a, b] = self.copies;
        let first = self.members.first().map_or(0, |(_, len)| *len);
        let unit = u64::from(self.unit_bytes);
        for at in self.copies.into_iter().filter(|at| *at != 0) {
            let good = at.is_multiple_of(unit) && at < first && geometry.is_unit(at / unit);
            require(good, "copies", at, "is no place of a copy")?;
        }
        require(a != b || a == 0, "copies", a, "is twice there")
    }

    /// Verifies that the members cover the pool in order, without gaps, in whole units.
    fn validate_members(&self, geometry: &Geometry) -> Result<(), Damage> {
        let mut end = 0;
        for &(start, len) in &self.members {
            require(start == end, "member.start", start, "is not where the member before it ends")?;
            let whole = len > 0 && len.is_multiple_of(u64::from(self.unit_bytes));
            require(whole, "member.len", len, "is no multiple of the allocation unit")?;
            end = start.checked_add(len).ok_or(Damage::field("member.len", len, "overflows"))?;
        }
        require(end == geometry.bytes(), "members", end, "do not add up to the size of the pool")?;
        let others = self.labels.iter().enumerate().filter(|&(at, _)| at == 0 || at >= self.members.len());
        let stray = others.map(|(_, generation)| *generation).find(|generation| *generation != 0);
        require(stray.is_none(), "labels", stray.unwrap_or(0), "belongs to no further member")
    }

    /// Returns two messages if the pool does not fit a device of `device_bytes` bytes: the part that is missing, and
    /// the fix. Returns `None` if the pool fits.
    pub fn missing_from(&self, device_bytes: u64) -> Option<(String, String)> {
        let bytes = self.geometry().bytes();
        if bytes <= device_bytes {
            return None;
        }
        let count = self.members.len();
        let cut = self.members.iter().position(|(start, len)| start + len > device_bytes)?;
        let (start, len) = self.members[cut];
        if cut == 0 || device_bytes >= start + u64::from(self.unit_bytes) {
            let there = device_bytes - start;
            let which =
                if count == 1 { "the device of the pool".to_owned() } else { format!("member {cut} of the pool") };
            let what =
                format!("{which} has shrunk, or is not the right one: it had {len} bytes, and {there} are there");
            return Some((what, "Give it back what it had, or name the right one".into()));
        }
        let last = count - 1;
        let gone = if cut == last { format!("member {cut} is") } else { format!("members {cut} to {last} are") };
        let sizes: Vec<String> = self.members[cut..].iter().map(|(_, len)| format!("{len} bytes")).collect();
        let what = format!("the pool has {count} members (0 to {last}), and {gone} missing: {}", sizes.join(", "));
        Some((what, "Name all of them, as in a.img+b.img; sheave pool scan DIR lists them".into()))
    }

    /// Returns a superblock with the same content and the next generation, for the other slot.
    pub fn twin(&self) -> Superblock {
        Superblock { generation: self.generation + 1, ..self.clone() }
    }

    /// Returns the largest number of allocation units that the pool can have.
    pub fn most_units(&self) -> u64 {
        if self.paired { MAX_PAIRED_UNITS } else { MAX_POOL_UNITS }
    }

    /// Returns a superblock that the other slot can have while this one is the newest: the same content, one generation
    /// older. The first generation has none before it and returns its twin.
    pub fn stand_by(&self) -> Superblock {
        match self.generation.checked_sub(1) {
            Some(generation) => Superblock { generation, ..self.clone() },
            None => self.twin(),
        }
    }

    /// Records that this opening keeps S3, by storing a number derived from its incarnation in `compat`. A program that
    /// does not know S3 leaves that number as it is, but opens the pool with another incarnation. Then the two do not
    /// match, and [`Superblock::keeps_twins`] returns false.
    pub fn keep_twins(&mut self) {
        self.compat = self.compat & ((1 << TWINS_SHIFT) - 1) | self.twins_number() << TWINS_SHIFT;
    }

    /// Returns true if freed space is discarded on the device in the background.
    pub fn discards(&self) -> bool {
        self.compat & COMPAT_DISCARD != 0
    }

    /// Sets whether freed space is discarded on the device.
    pub fn set_discards(&mut self, on: bool) {
        self.compat = if on { self.compat | COMPAT_DISCARD } else { self.compat & !COMPAT_DISCARD };
    }

    /// Returns true if the opening that wrote the superblock keeps S3.
    pub fn keeps_twins(&self) -> bool {
        self.compat >> TWINS_SHIFT == self.twins_number()
    }

    /// Returns the number that marks this incarnation, never 0: programs without the rule write 0.
    fn twins_number(&self) -> u32 {
        (self.incarnation % 0xffff) as u32 + 1
    }

    /// Returns true if this intact superblock can be used although the other one, which is lost, may have been newer:
    /// together with the journal it has all that was acknowledged. The same is true of both superblocks after a close,
    /// because the first checkpoint of the next opening, which may be the lost one, acknowledges nothing.
    pub fn stands_for_both(&self) -> bool {
        self.keeps_twins() || self.clean
    }

    /// Returns true if the close that wrote this superblock, the newest one, has written everything, given the
    /// superblock in the other slot (S5).
    pub fn close_is_complete(&self, other: &Superblock) -> bool {
        self.clean && *other == self.stand_by()
    }

    /// Returns the address of the slot for this generation (S2).
    pub fn slot(&self) -> u64 {
        SUPERBLOCKS[(self.generation % 2) as usize]
    }

    /// Returns the bits of features without which this program may only read the pool.
    pub fn unknown_ro_features(&self) -> u32 {
        self.ro_compat & !KNOWN_RO_COMPAT
    }

    /// Returns the geometry of the pool.
    pub fn geometry(&self) -> Geometry {
        Geometry { paired: self.paired, ..Geometry::new(self.unit_bytes, self.total_units, self.journal_blocks) }
    }
}

fn checksum_kind(body: &SuperblockBody) -> Result<Checksum, Damage> {
    let sums = body.sums.get();
    let checksum = match sums {
        SUMS_NONE => Checksum::None,
        SUMS_CRC32C => Checksum::Crc32c,
        _ => return Err(Damage::field("sums", sums, "is no kind of checksum")),
    };
    let flagged = body.incompat.get() & INCOMPAT_SUMS != 0;
    require(flagged == (sums != SUMS_NONE), "sums", sums, "contradicts the features")?;
    Ok(checksum)
}

fn low_water(body: &SuperblockBody) -> Result<LowWater, Damage> {
    match (body.low_water.get(), body.low_water_percent.get()) {
        (0, 0) => Ok(LowWater::Off),
        (bytes, 0) => Ok(LowWater::Bytes(bytes)),
        (0, percent @ 1..=99) => Ok(LowWater::Percent(percent)),
        (_, percent) => Err(Damage::field("low_water_percent", percent, "is more than 99, or not alone")),
    }
}

fn members(body: &SuperblockBody) -> Result<Vec<(u64, u64)>, Damage> {
    let count = body.members.get();
    require((1..=MAX_MEMBERS as u32).contains(&count), "members", count, "is 0 or more than 64")?;
    let (used, rest) = body.member.split_at(count as usize);
    let zero = rest.iter().all(|member| member.start.get() == 0 && member.len.get() == 0);
    require(zero, "member", count, "entries follow, which must be 0")?;
    Ok(used.iter().map(|member| (member.start.get(), member.len.get())).collect())
}

/// The newer superblock, and address and damage of the other slot if that is not intact.
pub type Chosen = (Superblock, Option<(u64, Damage)>);

/// Chooses the newer of the two slots. Returns the damage of both if neither is usable.
pub fn choose(slots: [Result<Superblock, Damage>; 2]) -> Result<Chosen, [Damage; 2]> {
    match slots {
        [Ok(a), Ok(b)] if a.pool != b.pool => {
            // One slot is left from an older pool. Formatting writes both slots, so the newer pool is incomplete, and
            // neither superblock is safe to use.
            Err([Damage::Foreign, Damage::Foreign])
        }
        [Ok(a), Ok(b)] => Ok((if a.generation > b.generation { a } else { b }, None)),
        [Ok(a), Err(damage)] => Ok((a, Some((SUPERBLOCKS[1], damage)))),
        [Err(damage), Ok(b)] => Ok((b, Some((SUPERBLOCKS[0], damage)))),
        [Err(a), Err(b)] => Err([a, b]),
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
