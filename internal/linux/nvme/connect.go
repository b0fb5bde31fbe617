package nvme

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kmsg"
)

// Connection describes a connection to a subsystem.
type Connection struct {
	Transport       string // tcp or rdma
	Address         netip.AddrPort
	NQN             string
	HostNQN, HostID string // newer kernels demand one host id for each host NQN
	// Seconds. Loss -1: the kernel tries to connect again for ever, every Delay; 0:
	// never. FastFail: I/O fails this long after the connection was lost; 0: it
	// waits.
	Loss, Delay, FastFail, KeepAlive int
	IOQueues                         int // 0: one for each CPU
	HeaderDigest, DataDigest         bool
	// DH-HMAC-CHAP keys in the form DHHC-1:…: of the host, and of the target.
	Key, TargetKey string
	// PSK: the connection uses TLS, or fails. Nil: without TLS.
	PSK *PSK

	tlsKey int // serial number of the PSK in the kernel
}

func (c Connection) check() error {
	for _, w := range []struct{ what, value string }{
		{"transport", c.Transport}, {"subsystem's NQN", c.NQN}, {"host NQN", c.HostNQN}, {"host ID", c.HostID}, {"DH-HMAC-CHAP key", c.Key}, {"DH-HMAC-CHAP key of the target", c.TargetKey},
	} {
		// The value can be a key.
		if strings.ContainsFunc(w.value, func(r rune) bool { return r <= ' ' || r == 0x7f || r == 0xfffd || r == ',' }) {
			return errs.Errorf(errs.Invalid, "the %s contains a comma, a space or a control character, which the kernel cannot have in it", w.what)
		}
	}
	if !c.Address.IsValid() || c.NQN == "" || c.HostNQN == "" || c.HostID == "" {
		return errs.Errorf(errs.Invalid, "a connection requires an address, the NQN of the subsystem, host NQN and host ID")
	}
	if c.PSK != nil && c.Transport != "tcp" {
		return errs.Errorf(errs.Invalid, "TLS requires the transport tcp, not %s", c.Transport)
	}
	return nil
}

// line returns the options for the kernel.
func (c Connection) line() string {
	words := []string{
		"transport=" + c.Transport, "traddr=" + c.Address.Addr().String(), fmt.Sprintf("trsvcid=%d", c.Address.Port()),
		"nqn=" + c.NQN, "hostnqn=" + c.HostNQN, "hostid=" + c.HostID,
		fmt.Sprintf("keep_alive_tmo=%d", c.KeepAlive), fmt.Sprintf("ctrl_loss_tmo=%d", c.Loss),
	}
	add := func(given bool, option string) {
		if given {
			words = append(words, option)
		}
	}
	add(c.Delay > 0, fmt.Sprintf("reconnect_delay=%d", c.Delay))
	add(c.FastFail > 0, fmt.Sprintf("fast_io_fail_tmo=%d", c.FastFail))
	add(c.IOQueues > 0, fmt.Sprintf("nr_io_queues=%d", c.IOQueues))
	add(c.HeaderDigest, "hdr_digest")
	add(c.DataDigest, "data_digest")
	add(c.Key != "", "dhchap_secret="+c.Key)
	add(c.TargetKey != "", "dhchap_ctrl_secret="+c.TargetKey)
	add(c.PSK != nil, fmt.Sprintf("tls,tls_key=%d", c.tlsKey))
	return strings.Join(words, ",")
}

// unknown returns the option of the connection that the kernel does not have.
func (c Connection) unknown(known map[string]bool) string {
	if known == nil {
		return ""
	}
	for word := range strings.SplitSeq(c.line(), ",") {
		if name, _, _ := strings.Cut(word, "="); !known[name] {
			return name
		}
	}
	return ""
}

// Connect connects to a subsystem: one more controller, whose namespaces the
// kernel scans after the call. It blocks for up to a minute. NotFound: the
// target does not have the subsystem. Unauthenticated: it refuses this host.
// Unavailable: it cannot be reached. Exists: this host is connected.
// Unsupported, Precondition: this kernel cannot do it.
func (k *Kernel) Connect(ctx context.Context, c Connection) error {
	if err := c.check(); err != nil {
		return err
	}
	if err := k.ready(ctx, c.Transport); err != nil {
		return err
	}
	known, err := k.options()
	if err != nil {
		return err
	}
	switch name := c.unknown(known); name {
	case "":
	case "tls", "tls_key":
		return errs.Errorf(errs.Unsupported, "this kernel has no NVMe/TCP with TLS, which the volume requires (tlsKey); use Linux 6.7 or newer with CONFIG_NVME_TCP_TLS, as Debian's 6.12")
	default:
		return errs.Errorf(errs.Unsupported, "this kernel does not have the option %s of NVMe over Fabrics, which the volume requires; use a newer kernel, or a volume without it", name)
	}
	if c.PSK != nil {
		if c.tlsKey, err = storeKey(c); err != nil {
			return err
		}
	}
	log, logErr := kmsg.Open()
	if logErr == nil {
		defer log.Close()
		logErr = log.SkipAll()
	}
	answer, err := k.request(ctx, c.line())
	if err != nil {
		reason := ""
		if logErr == nil {
			reason = reasonOf(log, c)
		}
		return c.explain(err, reason)
	}
	var instance, id int
	if _, err := fmt.Sscanf(answer, "instance=%d,cntlid=%d", &instance, &id); err != nil {
		return fmt.Errorf("connect to %s at %v: the kernel's answer is not understood: %s", c.NQN, c.Address, errs.Quote(answer))
	}
	return k.verify(ctx, c, fmt.Sprintf("nvme%d", instance))
}

// verify makes sure that the kernel uses the keys: older ones ignore some, and
// would connect without authentication.
func (k *Kernel) verify(ctx context.Context, c Connection, name string) error {
	if c.Key == "" && c.PSK == nil {
		return nil
	}
	all, err := k.Controllers()
	if err != nil {
		return err
	}
	for _, have := range all {
		if have.Name != name {
			continue
		}
		err = c.ignored(have)
		if err != nil {
			err = errors.Join(err, k.Delete(ctx, have))
		}
	}
	return err
}

// ignored says which key of the connection the kernel does not use.
func (c Connection) ignored(have Controller) error {
	switch {
	case c.Key != "" && !have.Authenticated:
		return errs.Errorf(errs.Unsupported, "this kernel has ignored the DH-HMAC-CHAP key of the volume: it is built without CONFIG_NVME_HOST_AUTH; use a newer kernel")
	case c.PSK != nil && !have.TLS:
		return errs.Errorf(errs.Unsupported, "this kernel has ignored the TLS key of the volume: it is built without CONFIG_NVME_TCP_TLS; use a newer kernel")
	}
	return nil
}

// Messages of nvmf_log_connect_error: the write has EIO for both.
const (
	noSubsystem = "Connect Invalid Data Parameter, subsysnqn"
	notAllowed  = "Connect for subsystem"
)

// reasonOf returns the kernel's message for a connection that it refused.
func reasonOf(log *kmsg.Log, c Connection) string {
	records, err := log.Read()
	if err != nil {
		return ""
	}
	for _, r := range records {
		if strings.Contains(r.Text, c.NQN) && (strings.Contains(r.Text, noSubsystem) || strings.Contains(r.Text, notAllowed)) {
			return r.Text
		}
	}
	return ""
}

// explain returns what an error of the kernel means: the errors were measured
// with Linux 6.1 and 6.12.
func (c Connection) explain(err error, reason string) error {
	where := fmt.Sprintf("connect to %s at %v", c.NQN, c.Address)
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return fmt.Errorf("%s: %w", where, err)
	}
	if c.PSK != nil {
		if err := explainTLS(errno, where, err); err != nil {
			return err
		}
	}
	switch errno {
	case unix.EALREADY:
		return errs.Errorf(errs.Exists, "%s: %w", where, err)
	case unix.EIO:
		switch {
		case strings.Contains(reason, noSubsystem):
			return errs.Errorf(errs.NotFound, "%s: the target has no such subsystem (%w)", where, err)
		case strings.Contains(reason, notAllowed):
			return errs.Errorf(errs.Unauthenticated, "%s: the target does not admit this host; allow the host NQN %s there (%w)", where, c.HostNQN, err)
		}
		key := ""
		if c.Key != "" {
			key = " or rejects its DH-HMAC-CHAP key"
		}
		return errs.Errorf(errs.Unavailable, "%s: the target has no such subsystem, or does not admit the host NQN %s%s; the kernel's log says which (%w)", where, c.HostNQN, key, err)
	case unix.ENOKEY:
		return errs.Errorf(errs.Unauthenticated, "%s: the target demands DH-HMAC-CHAP; name the key of this host in the volume's dhchapKey (%w)", where, err)
	case unix.EKEYREJECTED:
		return errs.Errorf(errs.Unauthenticated, "%s: the target or this host rejects the other's DH-HMAC-CHAP key (%w)", where, err)
	case unix.ELIBBAD:
		return errs.Errorf(errs.Unauthenticated, "%s: DH-HMAC-CHAP has failed in this kernel, which lacks the hash or DH group that the target demands; allow another one there, or use a kernel that has it (%w)", where, err)
	case unix.ECONNREFUSED, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ETIMEDOUT, unix.EAGAIN, unix.ECONNRESET, unix.EPIPE, unix.ENOTCONN:
		return errs.Errorf(errs.Unavailable, "%s: %w", where, err)
	case unix.EINVAL:
		return errs.Errorf(errs.Precondition, "%s: the kernel refuses the options: see its log; another program can use the host ID %s with another host NQN (%w)", where, c.HostID, err)
	case unix.ENOENT:
		if errors.Is(err, fs.ErrNotExist) {
			return errs.Errorf(errs.Unsupported, "%s: %w", where, err)
		}
	}
	return fmt.Errorf("%s: %w", where, err)
}
