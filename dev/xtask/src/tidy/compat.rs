//! Checks `docs/reference/compat.md`. The page must name every opcode and every set-up flag of the kernel's ring,
//! supported or not. In its table of liburing's tests, a row with "same" must name an existing test of ours.
//!
//! A row is a line of the table below the heading [`HEADING`]: programs, their result here, and our tests or the
//! reason. The names of tests are the code spans behind the last colon of the last cell, or all code spans of a cell
//! without a colon.

use std::collections::BTreeSet;

use super::finding::Finding;
use super::tree::Tree;

/// The page, and the heading above its table.
const PAGE: &str = "docs/reference/compat.md";
const HEADING: &str = "### liburing's own tests";

const OPCODES: &str = "NOP READV WRITEV FSYNC READ_FIXED WRITE_FIXED POLL_ADD POLL_REMOVE SYNC_FILE_RANGE SENDMSG \
    RECVMSG TIMEOUT TIMEOUT_REMOVE ACCEPT ASYNC_CANCEL LINK_TIMEOUT CONNECT FALLOCATE OPENAT CLOSE FILES_UPDATE STATX \
    READ WRITE FADVISE MADVISE SEND RECV OPENAT2 EPOLL_CTL SPLICE PROVIDE_BUFFERS REMOVE_BUFFERS TEE SHUTDOWN \
    RENAMEAT UNLINKAT MKDIRAT SYMLINKAT LINKAT MSG_RING FSETXATTR SETXATTR FGETXATTR GETXATTR SOCKET URING_CMD \
    SEND_ZC SENDMSG_ZC READ_MULTISHOT WAITID FUTEX_WAIT FUTEX_WAKE FUTEX_WAITV FIXED_FD_INSTALL FTRUNCATE BIND \
    LISTEN RECV_ZC EPOLL_WAIT READV_FIXED WRITEV_FIXED PIPE";

/// The set-up flags of Linux 6.18.
const SETUP_FLAGS: &str = "IOPOLL SQPOLL SQ_AFF CQSIZE CLAMP ATTACH_WQ R_DISABLED SUBMIT_ALL COOP_TASKRUN TASKRUN_FLAG \
    SQE128 CQE32 SINGLE_ISSUER DEFER_TASKRUN NO_MMAP REGISTERED_FD_ONLY NO_SQARRAY HYBRID_IOPOLL CQE_MIXED";

/// Finds opcodes and flags that the page does not name, rows without a test, and names of missing tests.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some((_, page)) = tree.pages.iter().find(|(path, _)| path == PAGE) else { return Vec::new() };
    let tests = tests(tree);
    let mut findings = unnamed(page);
    for (number, cells) in rows(page) {
        let [programs, here, by] = cells[..] else {
            findings.push(Finding::new(PAGE, number, "three cells: programs, what they find, by which test or why"));
            continue;
        };
        let named: Vec<&str> = named(by).collect();
        if named.is_empty() && here.starts_with("same") {
            findings.push(Finding::new(PAGE, number, format!("{programs}: \"same\", and no test says so")));
        }
        let missing = named.into_iter().filter(|name| !tests.contains(name));
        findings.extend(missing.map(|name| Finding::new(PAGE, number, format!("`{name}`: there is no such test"))));
    }
    findings
}

/// Finds opcodes and flags that the page does not name.
fn unnamed(page: &str) -> Vec<Finding> {
    let words: BTreeSet<&str> = page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let kernels = OPCODES.split_whitespace().chain(SETUP_FLAGS.split_whitespace());
    let missing = kernels.filter(|name| !words.contains(name));
    missing.map(|name| Finding::new(PAGE, 1, format!("{name}: say whether it is there, and who wants it"))).collect()
}

/// Returns the rows of the table with their lines, each split into cells.
fn rows(page: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    let below = page.lines().enumerate().skip_while(|(_, line)| *line != HEADING).skip(1);
    let rows = below.take_while(|(_, line)| !line.starts_with('#')).filter(|(_, line)| line.starts_with("| `"));
    rows.map(|(index, line)| {
        let cells = line.trim_matches('|').split(" | ").map(|cell| cell.trim_matches(['|', ' '])).collect();
        (index + 1, cells)
    })
}

/// Returns the names of tests in a cell.
fn named(cell: &str) -> impl Iterator<Item = &str> {
    let list = cell.rsplit_once(": ").map_or(cell, |(_, list)| list);
    let is_name = |span: &&str| {
        span.contains('_')
            && span.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    list.split('`').skip(1).step_by(2).filter(is_name)
}

/// Returns the names of all functions below a `#[test]`.
fn tests(tree: &Tree) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for source in &tree.sources {
        let mut behind = false;
        for line in source.text.lines().map(str::trim) {
            match line.strip_prefix("fn ").and_then(|rest| rest.split_once('(')) {
                Some((name, _)) if behind => {
                    names.insert(name);
                    behind = false;
                }
                _ => behind = line == "#[test]" || (behind && (line.starts_with("#[") || line.starts_with("//"))),
            }
        }
    }
    names
}

#[cfg(test)]
mod tests;
