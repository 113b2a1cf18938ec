//! Compares the tables of `docs/reference/on-disk-format.md` with this module: the offset and size of each field, and
//! the value of each constant.

use std::collections::BTreeMap;
use std::mem::offset_of;

use super::*;

const PAGE: &str = include_str!("../../../../docs/reference/on-disk-format.md");

/// Offset, bytes and name of each field.
type Rows = Vec<(usize, usize, String)>;

fn bytes_of<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// Lists all fields of a structure; their sizes must add up to the structure's size.
macro_rules! layout {
    ($name:ident { $($field:ident),* $(,)? }) => {{
        let rows: Rows = vec![$((
            offset_of!($name, $field),
            bytes_of(|it: &$name| &it.$field),
            stringify!($field).to_owned(),
        )),*];
        let sum: usize = rows.iter().map(|row| row.1).sum();
        assert_eq!(sum, size_of::<$name>(), "a field of {} is not named in this test", stringify!($name));
        (stringify!($name), rows)
    }};
}

fn superblock() -> (&'static str, Rows) {
    layout!(SuperblockBody {
        compat,
        ro_compat,
        incompat,
        state,
        unit_bytes,
        sums,
        total_units,
        journal_start,
        journal_blocks,
        next_volume,
        incarnation,
        replay_seq,
        table,
        table_level,
        volumes,
        members,
        created,
        member,
        sums_root,
        sums_level,
        low_water,
        low_water_percent,
        labels,
        lost_below,
        lost_count,
        lost,
        reserved,
        owner,
        labels_at,
        copies,
        table_second,
        sums_second,
        reserved_end,
        kept,
        kept_second,
        reserved_kept
    })
}

fn layouts() -> BTreeMap<&'static str, Rows> {
    BTreeMap::from([
        layout!(Header {
            magic,
            kind,
            version,
            checksum,
            level,
            reserved,
            pool,
            generation,
            address,
            index,
            owner,
            count
        }),
        superblock(),
        layout!(Member { start, len }),
        layout!(LabelBody { start, len, checkpoint }),
        layout!(Child { address, checksum }),
        layout!(JournalHead { first, blocks, reserved }),
        layout!(RecordHead { kind, name_len, len, volume }),
        layout!(SetBody { unit, phys }),
        layout!(RunBody { unit, count, phys }),
        layout!(CreateBody { size, max_size, created, flags, source }),
        layout!(ResizeBody { size }),
        layout!(SourceBody { source, reserved }),
        layout!(SumsHead { flags, marked }),
        layout!(KeptHead { next, next_second, reserved }),
        layout!(FreeHead { incarnation, replay_seq }),
        layout!(FreeRun { first, count }),
        layout!(IntentBody { first, count }),
        layout!(MarkBody { first, count }),
        layout!(IdentityBody { identity }),
        layout!(InterimBody { purpose, owner }),
        layout!(VolumeBody {
            id,
            flags,
            size,
            max_size,
            created,
            origin,
            family,
            root,
            root_level,
            name_len,
            root_second
        }),
    ])
}

/// Returns the cells of a table's row, without code marks.
fn cells(line: &str) -> Vec<String> {
    let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
    inner.split('|').map(|cell| cell.trim().replace('`', "")).collect()
}

/// Returns the tables of the page whose heading is a single name in code marks.
fn tables() -> BTreeMap<String, Rows> {
    let mut tables: BTreeMap<String, Rows> = BTreeMap::new();
    let mut name = None;
    for line in PAGE.lines() {
        if let Some(heading) = line.strip_prefix('#') {
            let heading = heading.trim_start_matches('#').trim();
            name = heading.strip_prefix('`').and_then(|rest| rest.split('`').next()).map(str::to_owned);
        }
        let (Some(name), true) = (&name, line.starts_with('|')) else { continue };
        let cells = cells(line);
        if let (Ok(offset), Ok(bytes)) = (cells[0].parse(), cells.get(1).map_or(Ok(0), |cell| cell.parse())) {
            assert!(cells.len() == 4 && cells[3].len() > 10, "{name}: no reason for {}", cells[2]);
            tables.entry(name.clone()).or_default().push((offset, bytes, cells[2].clone()));
        }
    }
    tables
}

#[test]
fn the_page_has_every_field_where_it_is() {
    let mut page = tables();
    for (name, rows) in layouts() {
        let documented = page.remove(name).unwrap_or_default();
        assert_eq!(documented, rows, "`{name}` in docs/reference/on-disk-format.md and in format.rs");
    }
    assert_eq!(page, BTreeMap::new(), "tables of structures that are not in format.rs");
}

fn features() -> BTreeMap<&'static str, u64> {
    BTreeMap::from([
        ("INCOMPAT_SUMS", INCOMPAT_SUMS.into()),
        ("INCOMPAT_LOST", INCOMPAT_LOST.into()),
        ("INCOMPAT_MARKS", INCOMPAT_MARKS.into()),
        ("INCOMPAT_OWNERS", INCOMPAT_OWNERS.into()),
        ("INCOMPAT_COPIES", INCOMPAT_COPIES.into()),
        ("INCOMPAT_PAIRS", INCOMPAT_PAIRS.into()),
        ("INCOMPAT_KEPT", INCOMPAT_KEPT.into()),
        ("INCOMPAT_OFF_GRID", INCOMPAT_OFF_GRID.into()),
        ("INCOMPAT_IDENTITIES", INCOMPAT_IDENTITIES.into()),
    ])
}

/// Returns all other constants that have a row in the page.
fn numbers() -> BTreeMap<&'static str, u64> {
    BTreeMap::from([
        ("BLOCK", BLOCK as u64),
        ("VERSION", VERSION.into()),
        ("JOURNAL_START", JOURNAL_START),
        ("MIN_UNIT_BYTES", MIN_UNIT_BYTES.into()),
        ("MAX_UNIT_BYTES", MAX_UNIT_BYTES.into()),
        ("MAX_POOL_UNITS", MAX_POOL_UNITS),
        ("MAX_PAIRED_UNITS", MAX_PAIRED_UNITS),
        ("MAX_VOLUME_UNITS", MAX_VOLUME_UNITS),
        ("MIN_JOURNAL_BLOCKS", MIN_JOURNAL_BLOCKS.into()),
        ("MAX_JOURNAL_BLOCKS", MAX_JOURNAL_BLOCKS.into()),
        ("MAX_MEMBERS", MAX_MEMBERS as u64),
        ("MAX_VOLUMES", MAX_VOLUMES.into()),
        ("MAX_NAME", MAX_NAME as u64),
        ("INDEX_CHILDREN", INDEX_CHILDREN as u64),
        ("MAX_LEVEL", MAX_LEVEL.into()),
        ("SUPERBLOCK", kind::SUPERBLOCK.into()),
        ("JOURNAL", kind::JOURNAL.into()),
        ("LEAF", kind::LEAF.into()),
        ("INDEX", kind::INDEX.into()),
        ("TABLE", kind::TABLE.into()),
        ("LABEL", kind::LABEL.into()),
        ("SUMS", kind::SUMS.into()),
        ("SUPERBLOCK_COPY", kind::SUPERBLOCK_COPY.into()),
        ("FREE", kind::FREE.into()),
        ("KEPT", kind::KEPT.into()),
        ("ROOT", kind::ROOT.into()),
        ("MAX_FREE_RUNS", MAX_FREE_RUNS as u64),
        ("SET", record_kind::SET.into()),
        ("RUN", record_kind::RUN.into()),
        ("CREATE", record_kind::CREATE.into()),
        ("COPY", record_kind::COPY.into()),
        ("RENAME", record_kind::RENAME.into()),
        ("RESIZE", record_kind::RESIZE.into()),
        ("DELETE", record_kind::DELETE.into()),
        ("ROLLBACK", record_kind::ROLLBACK.into()),
        ("ORIGIN", record_kind::ORIGIN.into()),
        ("INTENT", record_kind::INTENT.into()),
        ("LIMIT", record_kind::LIMIT.into()),
        ("MARK", record_kind::MARK.into()),
        ("UNMARK", record_kind::UNMARK.into()),
        ("MAX_MARKS", MAX_MARKS),
        ("MAX_SUMS", MAX_SUMS as u64),
        ("SUMS_OPEN", SUMS_OPEN.into()),
        ("STATE_CLEAN", STATE_CLEAN.into()),
        ("TWINS_SHIFT", TWINS_SHIFT.into()),
        ("COMPAT_DISCARD", COMPAT_DISCARD.into()),
        ("MAX_LOST", MAX_LOST as u64),
        ("COPIES", COPIES as u64),
        ("COPY_GRID", crate::format::superblock::COPY_GRID),
        ("LEAST_COPIED", crate::format::superblock::LEAST_COPIED),
        ("LEAST_ON_GRID", crate::format::superblock::LEAST_ON_GRID),
        ("SUMS_NONE", SUMS_NONE.into()),
        ("SUMS_CRC32C", SUMS_CRC32C.into()),
        ("VOLUME_SNAPSHOT", VOLUME_SNAPSHOT.into()),
        ("VOLUME_GROWS", VOLUME_GROWS.into()),
        ("VOLUME_INTERIM", VOLUME_INTERIM.into()),
        ("VOLUME_IDENTITY", VOLUME_IDENTITY.into()),
        ("INTERIM_NONE", INTERIM_NONE.into()),
        ("INTERIM_IMPORT", INTERIM_IMPORT.into()),
        ("INTERIM_IMPORT_DIFF", INTERIM_IMPORT_DIFF.into()),
        ("IDENTITY", record_kind::IDENTITY.into()),
        ("INTERIM", record_kind::INTERIM.into()),
    ])
}

#[test]
fn the_page_has_every_number() {
    let rows = PAGE.lines().filter(|line| line.starts_with("| `")).map(cells);
    let documented: BTreeMap<String, u64> =
        rows.filter_map(|cells| Some((cells[0].clone(), cells.get(1)?.replace('_', "").parse().ok()?))).collect();
    let numbers: BTreeMap<String, u64> =
        numbers().into_iter().chain(features()).map(|(name, value)| (name.to_owned(), value)).collect();
    assert_eq!(documented, numbers);
}

#[test]
fn the_page_has_the_leaves_of_every_unit_size() {
    for shift in 12..=20 {
        let g = crate::format::superblock::Geometry::new(1 << shift, 1 << 20, 16);
        let bitmap = g.unit_blocks.div_ceil(8);
        let row = format!(
            "| {} KiB | {} | {} | {} | {} | {} MiB |",
            g.unit_bytes >> 10,
            g.leaf_entries,
            bitmap,
            HEADER + 8 * g.leaf_entries,
            HEADER + (8 + bitmap) * g.leaf_entries,
            (g.leaf_entries as u64 * u64::from(g.unit_bytes)) >> 20,
        );
        assert!(PAGE.contains(&row), "docs/reference/on-disk-format.md lacks the row\n{row}");
    }
}

#[test]
fn sizes_do_not_change_by_accident() {
    assert_eq!((HEADER, PAYLOAD, JOURNAL_PAYLOAD), (64, 4032, 4016));
    assert_eq!(size_of::<VolumeBody>(), 56);
    assert!(HEADER + size_of::<SuperblockBody>() <= BLOCK);
    // An index page has room for all references and the upper bits of their second units.
    assert!(INDEX_CHILDREN * (size_of::<Child>() + 2) <= PAYLOAD);
    // The largest record fits an empty journal block, and the largest entry of the table fits a page.
    assert!(size_of::<RecordHead>() + size_of::<CreateBody>() + padded(MAX_NAME) <= JOURNAL_PAYLOAD);
    let extras = size_of::<IdentityBody>() + size_of::<InterimBody>();
    assert!(size_of::<VolumeBody>() + extras + padded(MAX_NAME) <= PAYLOAD);
}

#[test]
fn the_checksum_is_crc32c_without_itself() {
    let mut block = [0; BLOCK];
    let zero = checksum(&block);
    block[8..12].fill(0xFF);
    assert_eq!(checksum(&block), zero, "the field itself does not count");
    assert_eq!(zero, 0x98F9_4189, "CRC32C of 4096 zero bytes");
    block[12] = 1;
    assert_ne!(checksum(&block), zero);
}
