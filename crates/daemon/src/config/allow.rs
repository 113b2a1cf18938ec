//! `allow` of an export: rules for which clients may open it.
//!
//! Owns the look-up of user and group names in `/etc/passwd` and `/etc/group`. A confined daemon can still read these
//! files, for names in a configuration that is reloaded. Users and groups from other directories (LDAP) must be written
//! as numbers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use sheave_serve::{Address, Allow, Rule};
use toml::Spanned;

use crate::tls::TlsPlan;

/// Files with the users and the groups of this machine.
pub(crate) const DIRECTORIES: [&str; 2] = ["/etc/passwd", "/etc/group"];

/// IDs that were looked up before, by file and name.
static KNOWN: Mutex<BTreeMap<(PathBuf, String), u32>> = Mutex::new(BTreeMap::new());

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Id {
    Number(u32),
    Name(String),
}

/// An access rule, as written in the configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AllowTable {
    user: Option<Id>,
    group: Option<Id>,
    certificate: Option<String>,
    address: Option<String>,
    listen: Option<String>,
}

impl Id {
    pub(super) fn user(&self) -> Result<u32, String> {
        self.number("user", DIRECTORIES[0])
    }

    pub(super) fn group(&self) -> Result<u32, String> {
        self.number("group", DIRECTORIES[1])
    }

    fn number(&self, what: &str, directory: &str) -> Result<u32, String> {
        match self {
            Id::Number(number) => Ok(*number),
            Id::Name(name) => number_of(what, name, Path::new(directory)),
        }
    }
}

/// Returns the ID of `name` in `directory`, a file of lines `NAME:x:ID:...`. A `name` that is a number is that ID.
pub(super) fn number_of(what: &str, name: &str, directory: &Path) -> Result<u32, String> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let (fix, key) = ("write its number", (directory.to_owned(), name.to_owned()));
    let lines = match std::fs::read_to_string(directory) {
        Ok(lines) => lines,
        // `useradd` replaces /etc/passwd by a new file. The rules of a confined daemon name the old inode, so the read
        // fails.
        Err(error) => {
            let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied();
            return known.ok_or_else(|| format!("{what} '{name}': {}: {error}; {fix}", directory.display()));
        }
    };
    let found = lines.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    });
    found
        .into_iter()
        .for_each(|number| _ = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), number));
    found.ok_or_else(|| format!("there is no {what} '{name}' in {}; {fix}", directory.display()))
}

/// Parses the rules of an export, given the addresses and TLS settings of the plan, and the address of the export's
/// own vhost-user socket. An error has its offset in the file.
pub(super) fn allow(
    tables: Option<&Spanned<Vec<AllowTable>>>,
    listen: &[Address],
    own: Option<&Address>,
    tls: &[TlsPlan],
) -> Result<Allow, (usize, String)> {
    let Some(tables) = tables else { return Ok(Allow::All) };
    let wrong = |why: &str| (tables.span().start, why.to_owned());
    if tables.get_ref().is_empty() {
        return Err(wrong("an empty allow lets nobody in; leave it out for everybody"));
    }
    let asks = |tls: &TlsPlan| tls.files.as_ref().is_some_and(|files| files.client_ca.is_some());
    if tables.get_ref().iter().any(|table| table.certificate.is_some()) && !tls.iter().any(asks) {
        let why = "allow: nobody is asked for a certificate: a [[tls]] with client_ca does that";
        return Err(wrong(why));
    }
    let rules = tables.get_ref().iter().map(|table| table.rule(listen, own)).collect::<Result<_, _>>();
    rules.map(Allow::Only).map_err(|why: String| wrong(&format!("allow: {why}")))
}

impl AllowTable {
    fn rule(&self, listen: &[Address], own: Option<&Address>) -> Result<Rule, String> {
        let address = self.address.as_ref().map(|address| address.parse()).transpose()?;
        let at = |text: &String| {
            let address: Address = text.parse().map_err(|why| format!("{why}"))?;
            // Without `listen`, systemd passes the sockets, and their addresses are not known yet.
            match listen.is_empty() || listen.contains(&address) || own == Some(&address) {
                true => Ok(address),
                false => Err(format!("{address} is not among the addresses of 'listen'")),
            }
        };
        let rule = Rule {
            user: self.user.as_ref().map(Id::user).transpose()?,
            group: self.group.as_ref().map(Id::group).transpose()?,
            certificate: self.certificate.clone(),
            address,
            listen: self.listen.as_ref().map(at).transpose()?,
        };
        let (local, remote) = (rule.user.or(rule.group).is_some(), rule.address.is_some());
        match rule == Rule::default() || local && remote {
            true if local => Err("a user or group comes by a unix socket, and an address by TCP: no client has both. \
                                  Write two rules"
                .into()),
            true => Err("a rule names a user, group, certificate, address or listen".into()),
            false => Ok(rule),
        }
    }
}
