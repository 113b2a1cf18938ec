//! TLS settings of the configuration and the command line: addresses with TLS, and their files.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use sheave_serve::{Address, Listener, Tls, TlsFiles};
use toml::Spanned;

use crate::failure::{self, Failure};

/// A certificate that expires within this time should be renewed.
pub(crate) const RENEW: Duration = Duration::from_secs(14 * 86_400);

/// TLS settings of some addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsPlan {
    /// Addresses that they apply to; all, if empty.
    pub listen: Vec<Address>,
    /// True if clients must use TLS.
    pub required: bool,
    /// Certificates and keys; `None` switches TLS off for these addresses.
    pub files: Option<TlsFiles>,
}

/// Addresses (all, if empty) with their TLS after its files were read; `None` if it is switched off.
pub type Loaded = (Vec<Address>, Option<Tls>);

/// A `[[tls]]` table of the configuration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsTable {
    #[serde(default)]
    listen: Vec<Spanned<String>>,
    mode: Option<Spanned<String>>,
    certificate: Spanned<PathBuf>,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    #[serde(default)]
    allow: Vec<String>,
}

impl TlsTable {
    /// Offset of its `certificate` in the file.
    pub(crate) fn place(&self) -> usize {
        self.certificate.span().start
    }

    /// Returns true if it switches TLS off without naming an address, and so has no effect.
    pub(crate) fn means_nothing(&self) -> bool {
        self.listen.is_empty() && self.mode.as_ref().is_some_and(|mode| mode.get_ref() == "off")
    }

    /// Converts the table, given the addresses of `listen`. Returns `None` if it has no effect. An error has its offset
    /// in the file.
    pub fn plan(self, addresses: &[Address]) -> Result<Option<TlsPlan>, (usize, String)> {
        let (on, required) = match &self.mode {
            None => (true, true),
            Some(mode) => match mode.get_ref().as_str() {
                "require" => (true, true),
                "allow" => (true, false),
                "off" if self.listen.is_empty() => return Ok(None),
                "off" => (false, false),
                _ => return Err((mode.span().start, "mode is \"require\", \"allow\" or \"off\"".into())),
            },
        };
        let known = |text: &Spanned<String>| {
            let wrong = |why: String| (text.span().start, why);
            let address: Address = text.get_ref().parse().map_err(|why| wrong(format!("{why}")))?;
            // Without `listen`, systemd passes the sockets, and their addresses are not known yet.
            if addresses.is_empty() || addresses.contains(&address) {
                return Ok(address);
            }
            Err(wrong(format!("{address} is not among the addresses of 'listen'")))
        };
        let listen = self.listen.iter().map(known).collect::<Result<_, _>>()?;
        let TlsTable { certificate, key, client_ca, allow, .. } = self;
        let certificate = certificate.into_inner();
        let files = on.then_some(TlsFiles { certificate, key, client_ca, allow });
        Ok(Some(TlsPlan { listen, required, files }))
    }
}

/// Reads the files of all plans.
///
/// # Errors
///
/// A file cannot be read or used.
pub fn load(plans: &[TlsPlan]) -> Result<Vec<Loaded>, Failure> {
    let load = |plan: &TlsPlan| {
        let tls = plan.files.as_ref().map(|files| Tls::load(files, plan.required)).transpose()?;
        Ok((plan.listen.clone(), tls))
    };
    plans.iter().map(load).collect::<Result<_, _>>().map_err(failure::serve)
}

/// Sets the TLS of each socket: the first entry for its address, or for all addresses. A socket whose address is no
/// longer in `listen`, and that has no entry, keeps its TLS: it stays open until the daemon ends, and removing the
/// address from the configuration must not open it to everybody.
///
/// # Errors
///
/// An entry names an address without a socket; the intended socket would accept clients without TLS. Nothing is changed
/// then.
pub fn set(listeners: &[Listener], loaded: &[Loaded], listen: &[Address]) -> Result<(), Failure> {
    let names = |named: &Address, listener: &Listener| named == listener.asked_for() || named == listener.address();
    let named = loaded.iter().flat_map(|(listen, _)| listen);
    if let Some(nowhere) = named.into_iter().find(|named| !listeners.iter().any(|listener| names(named, listener))) {
        let there: Vec<_> = listeners.iter().map(|listener| listener.address().to_string()).collect();
        return Err(Failure::usage(format!("TLS is for {nowhere}, where no socket listens"))
            .fix(format!("write the address as the socket has it: {}", there.join(", "))));
    }
    for listener in listeners {
        let its = |listen: &[Address]| listen.is_empty() || listen.iter().any(|named| names(named, listener));
        match loaded.iter().find(|(listen, _)| its(listen)) {
            Some((_, tls)) => listener.set_tls(tls.clone()),
            None if listen.iter().any(|known| names(known, listener)) => listener.set_tls(None),
            None => {}
        }
    }
    Ok(())
}
