package krbd

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

// Spec describes a map.
type Spec struct {
	Monitors []netip.AddrPort // port 0: the kernel's default
	User     string           // without "client."
	Secret   string           // the user's key, in base64
	// Owner begins the name of the map's key, which Device.Key returns: it
	// distinguishes devices of several programs.
	Owner                  string
	Pool, Namespace, Image string
	ReadOnly               bool
	// QueueDepth is the number of requests in flight; 0: the kernel's default.
	QueueDepth int
}

const (
	portMessenger2 = 3300 // of monitors; 6789 has the older protocol
	maxWord        = 255
	maxMonitors    = 32
)

// line returns the line for add_single_major. "noshare" gives the map a client
// instance of its own, so that it can be fenced and unmapped alone. The key is
// in the kernel's keyring: sysfs would show one in the line.
func (s Spec) line(key string) string {
	options := "name=" + s.User + "," + optionKey + key + ",noshare"
	if slices.ContainsFunc(s.Monitors, func(m netip.AddrPort) bool { return m.Port() == portMessenger2 }) {
		options += ",ms_mode=prefer-crc"
	}
	if s.QueueDepth > 0 {
		options += fmt.Sprintf(",queue_depth=%d", s.QueueDepth)
	}
	if s.Namespace != "" {
		options += ",_pool_ns=" + s.Namespace
	}
	if s.ReadOnly {
		options += "," + optionReadOnly
	}
	return strings.Join([]string{s.monitors(), options, s.Pool, s.Image, noSnapshot}, " ")
}

func (s Spec) monitors() string {
	var all []string
	for _, m := range s.Monitors {
		all = append(all, FormatMonitor(m))
	}
	return strings.Join(all, ",")
}

const (
	optionReadOnly = "ro"
	optionKey      = "key="
	noSnapshot     = "-"
)

// FormatMonitor formats an address as in Device.Monitors.
func FormatMonitor(m netip.AddrPort) string {
	if m.Port() != 0 {
		return m.String()
	}
	if m.Addr().Is6() {
		return "[" + m.Addr().String() + "]"
	}
	return m.Addr().String()
}

// check rejects what would become other words or options of the line.
func (s Spec) check() error {
	if n := len(s.Monitors); n == 0 || n > maxMonitors {
		return errs.Errorf(errs.Invalid, "%d addresses of monitors: 1 to %d are possible", n, maxMonitors)
	}
	for _, m := range s.Monitors {
		if !m.IsValid() || m.Addr().Zone() != "" {
			return errs.Errorf(errs.Invalid, "%v is not an address of a monitor", m)
		}
	}
	for _, w := range []struct {
		what, value string
		optional    bool
	}{{"user", s.User, false}, {"pool", s.Pool, false}, {"namespace", s.Namespace, true}, {"image", s.Image, false}} {
		if w.value == "" && !w.optional {
			return errs.Errorf(errs.Invalid, "the %s is missing: an RBD image is mapped by user, pool and image", w.what)
		}
		if err := checkWord(w.what, w.value); err != nil {
			return err
		}
	}
	if s.Owner == "" || strings.ContainsFunc(s.Owner, func(r rune) bool { return r <= ' ' || r == 0x7f || r == ',' || r == 0xfffd }) {
		return errs.Errorf(errs.Internal, "the owner %s is not one word without commas", errs.Quote(s.Owner))
	}
	if s.QueueDepth < 0 || s.QueueDepth > 4096 {
		return errs.Errorf(errs.Invalid, "queue depth %d is not in the range 0 to 4096", s.QueueDepth)
	}
	return nil
}

func checkWord(what, value string) error {
	for _, r := range value {
		if r <= ' ' || r == 0x7f || r == 0xfffd || strings.ContainsRune(`,/@\"`, r) {
			return errs.Errorf(errs.Invalid, "the %s %s contains %q, which the kernel's RBD driver cannot have in names", what, errs.Quote(value), r)
		}
	}
	if len(value) > maxWord {
		return errs.Errorf(errs.Invalid, "the %s %s is longer than %d bytes", what, errs.Quote(value), maxWord)
	}
	return nil
}

// Map maps an image as another device, even if it has one. It blocks until the
// cluster answers. NotFound: pool, namespace or image do not exist.
// Unauthenticated: the cluster refuses the key. Unavailable: no monitor answers.
func (k *Kernel) Map(ctx context.Context, s Spec) (Device, error) {
	if err := s.check(); err != nil {
		return Device{}, err
	}
	secret, err := base64.StdEncoding.DecodeString(strings.TrimSpace(s.Secret))
	if err != nil || len(secret) == 0 {
		return Device{}, errs.Errorf(errs.Invalid, "the key of client.%s is not a Ceph key: it must be base64, as `ceph auth print-key` prints it", s.User)
	}
	if err := k.ready(ctx); err != nil {
		return Device{}, err
	}
	key := s.Owner + "/" + rand.Text()
	if err := k.add(key, secret, s.line(key)); err != nil {
		return Device{}, s.explain(err)
	}
	all, err := k.List()
	if err != nil {
		return Device{}, err
	}
	for _, d := range all {
		if d.Key == key {
			return d, nil
		}
	}
	return Device{}, errs.Errorf(errs.Internal, "the kernel mapped %s, but /sys/bus/rbd does not list its device", s.name())
}

// add writes on a thread of its own: only it has the key, and the thread ends
// here, as its goroutine does not unlock it.
func (k *Kernel) add(key string, secret []byte, line string) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := k.AddKey(key, secret)
		if err != nil {
			done <- fmt.Errorf("add the key to the kernel's keyring: %w", err)
			return
		}
		done <- k.Write(k.bus("add_single_major"), line)
	}()
	return <-done
}

func (s Spec) name() string {
	if s.Namespace != "" {
		return s.Pool + "/" + s.Namespace + "/" + s.Image
	}
	return s.Pool + "/" + s.Image
}

// explain gives the kernel's error numbers their meaning; the kernel log has
// details.
func (s Spec) explain(err error) error {
	for _, c := range []struct {
		is   []error
		kind errs.Kind
		text string
	}{
		{[]error{unix.ENOENT}, errs.NotFound, "the pool, the namespace or the image does not exist, or client." + s.User + " is not allowed to see it"},
		{[]error{unix.EACCES, unix.EPERM, unix.ENOKEY, unix.EKEYREJECTED}, errs.Unauthenticated, "the cluster refuses client." + s.User + ": check user and key, and its capabilities (mon \"allow r\", osd \"profile rbd pool=" + s.Pool + "\")"},
		{[]error{unix.ENXIO}, errs.Precondition, "the image has features that this kernel's RBD driver lacks: disable them with `rbd feature disable`, the kernel log names them"},
		{[]error{unix.EROFS}, errs.Precondition, "the image is locked exclusively by another client"},
		{[]error{unix.ESHUTDOWN}, errs.Precondition, "this client is on the cluster's blocklist: it is fenced"},
		{[]error{unix.ETIMEDOUT, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ECONNREFUSED, unix.ECONNRESET, unix.EIO, unix.EINTR}, errs.Unavailable, "the monitors " + s.monitors() + " do not answer"},
		{[]error{unix.EINVAL}, errs.Precondition, "the kernel refuses the image or an option, see the kernel log"},
		{[]error{unix.ENOSPC, unix.EDQUOT}, errs.Exhausted, "the pool is full"},
	} {
		for _, errno := range c.is {
			if errors.Is(err, errno) {
				return errs.Errorf(c.kind, "map %s: %s (%w)", s.name(), c.text, err)
			}
		}
	}
	return fmt.Errorf("map %s: %w", s.name(), err)
}
