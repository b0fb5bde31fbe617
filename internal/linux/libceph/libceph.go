// Package libceph has what the kernel's drivers for RBD and CephFS share: the
// options of a client, and its key.
package libceph

import (
	"encoding/base64"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
)

// Client is how a driver becomes a client of a cluster.
type Client struct {
	Monitors []netip.AddrPort // port 0: the kernel's default
	User     string           // without "client."
	Secret   string           // the user's key, in base64
}

const (
	portMessenger2 = 3300 // of monitors; 6789 has the older protocol
	maxName        = 255
	maxMonitors    = 32
)

// OptionKey begins the option with the name of the key.
const OptionKey = "key="

// Options returns the options with the name of the key. "noshare" gives the
// device or mount a client instance of its own, so that it can be fenced and
// removed alone. The key is in the kernel's keyring: the kernel would show one
// in the options.
func (c Client) Options(key string) string {
	options := "name=" + c.User + "," + OptionKey + key + ",noshare"
	if slices.ContainsFunc(c.Monitors, func(m netip.AddrPort) bool { return m.Port() == portMessenger2 }) {
		options += ",ms_mode=prefer-crc"
	}
	return options
}

// Addresses returns the monitors' addresses, separated by commas.
func (c Client) Addresses() string {
	var all []string
	for _, m := range c.Monitors {
		all = append(all, FormatMonitor(m))
	}
	return strings.Join(all, ",")
}

// FormatMonitor formats an address as the kernel shows it.
func FormatMonitor(m netip.AddrPort) string {
	if m.Port() != 0 {
		return m.String()
	}
	if m.Addr().Is6() {
		return "[" + m.Addr().String() + "]"
	}
	return m.Addr().String()
}

// Check rejects, as Invalid, what would become other words or options.
func (c Client) Check() error {
	if n := len(c.Monitors); n == 0 || n > maxMonitors {
		return errs.Errorf(errs.Invalid, "%d addresses of monitors: 1 to %d are possible", n, maxMonitors)
	}
	for _, m := range c.Monitors {
		if !m.IsValid() || m.Addr().Zone() != "" {
			return errs.Errorf(errs.Invalid, "%v is not an address of a monitor", m)
		}
	}
	if c.User == "" {
		return errs.Errorf(errs.Invalid, "the user is missing: a Ceph client has a user and its key")
	}
	if err := CheckName("user", c.User); err != nil {
		return err
	}
	_, err := c.KernelKey("")
	return err
}

// CheckName rejects what cannot be one word of a driver's options.
func CheckName(what, value string) error {
	for _, r := range value {
		if r <= ' ' || r == 0x7f || r == 0xfffd || strings.ContainsRune(`,/@\"`, r) {
			return errs.Errorf(errs.Invalid, "the %s %s contains %q, which the kernel's Ceph drivers cannot have in names", what, errs.Quote(value), r)
		}
	}
	if len(value) > maxName {
		return errs.Errorf(errs.Invalid, "the %s %s is longer than %d bytes", what, errs.Quote(value), maxName)
	}
	return nil
}

// keyTypeAES is the type of keys that all kernels can use. The type is the first
// field of a key, little endian; Ceph 20.2.4 has also 2, aes256k.
const keyTypeAES = 1

// UnusableKey returns a Precondition if err says that the kernel cannot use the
// client's key, else nil. Linux before 7.0 refuses a key of type aes256k as too
// long, before it is a client of the cluster; later kernels need two modules for it.
func (c Client) UnusableKey(err error) error {
	if errors.Is(err, unix.ENOPKG) {
		return errs.Errorf(errs.Precondition, "this kernel lacks a part of its cryptography that the key of client.%s needs: install the modules authenc and cts, or give this node a user with a key of type aes (%w)", c.User, err)
	}
	key, decodeErr := c.KernelKey("")
	if decodeErr != nil || !errors.Is(err, kernelcall.ErrKey) || !errors.Is(err, unix.EINVAL) || len(key.Payload) < 2 || key.Payload[0] == keyTypeAES && key.Payload[1] == 0 {
		return nil
	}
	return errs.Errorf(errs.Precondition, "this kernel refuses the key of client.%s, whose type is %d (1 is aes, 2 is aes256k, which Linux 7.0 and later can use): give this node a user with a key of type aes, which `ceph mon set auth_allowed_ciphers aes,aes256k` and `ceph auth get-or-create client.NAME … --key_type aes` make, or a newer kernel (%w)", c.User, int(key.Payload[1])<<8|int(key.Payload[0]), err)
}

// KernelKey returns the user's key for a call to the kernel.
func (c Client) KernelKey(name string) (kernelcall.Key, error) {
	secret, err := base64.StdEncoding.DecodeString(strings.TrimSpace(c.Secret))
	if err != nil || len(secret) == 0 {
		return kernelcall.Key{}, errs.Errorf(errs.Invalid, "the key of client.%s is not a Ceph key: it must be base64, as `ceph auth print-key` prints it", c.User)
	}
	return kernelcall.Key{Name: name, Payload: secret}, nil
}
