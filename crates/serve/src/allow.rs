//! Access rules: which clients may open an export.
//!
//! Owns the rules. An export that a client may not open is hidden from it: no list shows it, and a request for its name
//! gets the same answer as one for a name that does not exist (`Seen`, in `conn/negotiation.rs`).
//!
//! * A1. All conditions of a rule must hold. Of several rules one is enough.
//! * A2. A common name counts once TLS has begun and the certificate was verified ([`tls`](crate::tls), T1).
//! * A3. The rules are checked when a client asks for the export, and again when it gets it, under the lock that a
//!   change of the rules takes. A client that has the export keeps it.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::clients::{Origin, Who};
use crate::listen::Address;

/// A range of IP addresses: `192.0.2.7`, `192.0.2.0/24`, `2001:db8::/32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u32,
}

/// Returns the bits of an address and their number. An IPv4 address mapped into IPv6 counts as IPv4.
fn bits(address: IpAddr) -> (u128, u32) {
    match address.to_canonical() {
        IpAddr::V4(four) => (four.to_bits().into(), 32),
        IpAddr::V6(six) => (six.to_bits(), 128),
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let wrong = || format!("'{text}' is no address. Write 192.0.2.7, 192.0.2.0/24 or 2001:db8::/32");
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let (value, most) = bits(address);
        let bits = prefix.map_or(Ok(most), |prefix| prefix.parse().map_err(|_| wrong()))?;
        if bits > most {
            return Err(wrong());
        }
        // Refused: an address with bits set after the prefix is probably a typing error, and another network was meant.
        if bits < most && value.unbounded_shl(128 - most + bits) != 0 {
            return Err(format!("'{text}' has bits behind its prefix: write the first address of the network"));
        }
        Ok(Network { address: address.to_canonical(), bits })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl Network {
    fn has(&self, address: IpAddr) -> bool {
        let ((own, most), (other, of)) = (bits(self.address), bits(address));
        most == of && (own ^ other).unbounded_shr(most - self.bits) == 0
    }
}

/// Conditions on a client; one that meets all of them may open the export (A1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// User id of the client, on a unix socket.
    pub user: Option<u32>,
    /// Primary group id of the client's process, on a unix socket.
    pub group: Option<u32>,
    /// A common name of its certificate.
    pub certificate: Option<String>,
    /// Network that contains the client's TCP address.
    pub address: Option<Network>,
    /// Address of the server that the client connected to, as configured or as bound.
    pub listen: Option<Address>,
}

impl Rule {
    fn admits(&self, who: &Who) -> bool {
        let (mut user, mut group, mut from) = (None, None, None);
        match who.origin {
            Origin::Process { uid, gid, .. } => (user, group) = (Some(uid), Some(gid)),
            Origin::Address(address) => from = Some(address.ip()),
            Origin::Unknown => {}
        }
        self.user.is_none_or(|uid| user == Some(uid))
            && self.group.is_none_or(|gid| group == Some(gid))
            && self.certificate.as_ref().is_none_or(|name| who.certificate.contains(name))
            && self.address.is_none_or(|network| from.is_some_and(|address| network.has(address)))
            && self.listen.as_ref().is_none_or(|address| who.at.contains(address))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.user.map(|uid| format!("user={uid}")),
            self.group.map(|gid| format!("group={gid}")),
            self.certificate.as_ref().map(|name| format!("certificate={name:?}")),
            self.address.map(|network| format!("address={network}")),
            self.listen.as_ref().map(|address| format!("listen={address}")),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

/// The clients that may open an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Allow {
    /// All clients that can connect.
    #[default]
    All,
    /// Clients that one of these rules admits.
    Only(Vec<Rule>),
}

impl Allow {
    /// Returns true if there are no rules.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Allow::All
    }

    /// Returns true if a rule lets this client open the export.
    #[must_use]
    pub fn admits(&self, who: &Who) -> bool {
        match self {
            Allow::All => true,
            Allow::Only(rules) => rules.iter().any(|rule| rule.admits(who)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().expect(text)
    }

    fn at(address: &str) -> Who {
        let origin = Origin::Address(std::net::SocketAddr::new(address.parse().expect("an address"), 1));
        Who { origin, certificate: Vec::new(), at: Vec::new() }
    }

    fn of(uid: u32, gid: u32) -> Who {
        Who { origin: Origin::Process { pid: None, uid, gid }, certificate: Vec::new(), at: Vec::new() }
    }

    #[test]
    fn a_network_has_its_addresses_and_no_others() {
        for (text, inside, outside) in [
            ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("192.0.2.0/24", "192.0.2.255", "192.0.3.0"),
            ("192.0.2.128/25", "192.0.2.128", "192.0.2.127"),
            ("0.0.0.0/0", "203.0.113.9", "2001:db8::1"),
            // An IPv6 socket reports an IPv4 client like this.
            ("192.0.2.0/24", "::ffff:192.0.2.9", "::ffff:192.0.3.9"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::1"),
            ("::/0", "2001:db8::1", "192.0.2.1"),
            ("::1", "::1", "::2"),
        ] {
            let rule = Rule { address: Some(network(text)), ..Rule::default() };
            assert!(rule.admits(&at(inside)), "{text} {inside}");
            assert!(!rule.admits(&at(outside)), "{text} {outside}");
            assert!(!rule.admits(&of(0, 0)), "who comes by a unix socket has no address");
        }
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in ["", "here", "192.0.2.0/33", "192.0.2.0/-1", "192.0.2.0/", "2001:db8::/129", "192.0.2"] {
            assert!(text.parse::<Network>().expect_err(text).contains("is no address"), "{text}");
        }
        for text in ["192.0.2.7/24", "192.0.2.1/0", "2001:db8::1/64"] {
            assert!(text.parse::<Network>().expect_err(text).contains("behind its prefix"), "{text}");
        }
    }

    #[test]
    fn all_of_a_rule_must_be_so_and_one_rule_is_enough() {
        let rule = |user, group| Rule { user, group, ..Rule::default() };
        let both = rule(Some(7), Some(8));
        assert!(both.admits(&of(7, 8)) && !both.admits(&of(7, 9)) && !both.admits(&of(9, 8)));
        assert!(!both.admits(&at("192.0.2.1")), "who comes by TCP is no user");
        let named = Rule { certificate: Some("backup".into()), ..Rule::default() };
        let with = |names: &[&str]| Who { certificate: names.iter().map(|name| (*name).into()).collect(), ..of(7, 8) };
        assert!(
            named.admits(&with(&["x", "backup"])) && !named.admits(&with(&["backup2"])) && !named.admits(&with(&[]))
        );
        let listen: Address = "unix:/a".parse().expect("an address");
        let there = Rule { listen: Some(listen.clone()), ..Rule::default() };
        assert!(there.admits(&Who { at: vec![listen], ..of(7, 8) }) && !there.admits(&of(7, 8)));
        let only = Allow::Only(vec![both, named]);
        assert!(only.admits(&of(7, 8)) && only.admits(&Who { origin: Origin::Unknown, ..with(&["backup"]) }));
        assert!(!only.admits(&of(0, 0)), "root is a user as any other");
        assert!(Allow::All.admits(&of(9, 9)) && !Allow::Only(Vec::new()).admits(&of(0, 0)));
    }
}
