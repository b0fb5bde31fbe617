package nvme

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/keyring"
)

// Keys of TLS are in this keyring, from which tlshd takes them.
const (
	tlsKeyring = ".nvme"
	tlsKeyType = "psk"
)

// storeKey stores the TLS PSK of a connection in the kernel, and returns its
// serial number.
func storeKey(c Connection) (serial int, err error) {
	identity, key, err := c.PSK.derive(c.HostNQN, c.NQN)
	if err != nil {
		return 0, err
	}
	ring, err := keyring.Find(tlsKeyring)
	if errs.KindOf(err) == errs.NotFound || errors.Is(err, fs.ErrNotExist) {
		return 0, errs.Errorf(errs.Unsupported, "%w: the module nvme-keyring has it (CONFIG_NVME_TCP_TLS), and root of the machine sees it in /proc/keys", err)
	}
	if err != nil {
		return 0, err
	}
	return ring.Put(tlsKeyType, identity, key)
}

// RemoveKey removes the TLS PSK of a host and a subsystem from the kernel. The
// kernel's connections need it to reconnect: delete them first. A missing key is
// no error.
func (k *Kernel) RemoveKey(hostNQN, nqn string) error {
	ring, err := keyring.Find(tlsKeyring)
	if errs.KindOf(err) == errs.NotFound || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(
		ring.Remove(tlsKeyType, pskIdentity("01", hostNQN, nqn)),
		ring.Remove(tlsKeyType, pskIdentity("02", hostNQN, nqn)),
	)
}

// explainTLS returns what an error of the kernel means for a connection with
// TLS; nil: the same as without.
func explainTLS(errno unix.Errno, where string, err error) error {
	switch errno {
	case unix.ESRCH:
		return errs.Errorf(errs.Precondition, "%s: nothing does the TLS handshake on this machine: start tlshd of ktls-utils on it, outside containers; older releases need keyrings=.nvme in the section [authenticate] of /etc/tlshd.conf (%w)", where, err)
	case unix.EACCES, unix.EKEYREJECTED, unix.ENOKEY:
		return errs.Errorf(errs.Unauthenticated, "%s: the TLS handshake failed, or the target demands a DH-HMAC-CHAP key too; compare tlsKey with the key of this host at the target, and see the log of tlshd (%w)", where, err)
	case unix.ETIMEDOUT:
		return errs.Errorf(errs.Unavailable, "%s: the target does not answer, or tlshd has not ended the TLS handshake: see its log (%w)", where, err)
	}
	return nil
}
