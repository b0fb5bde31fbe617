package expose

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
)

const (
	// ownNQN begins the NQNs of subsystems that hold one device alone: the node
	// driver's as well, so that either can hide what the other exposed.
	ownNQN = "nqn.2022-10.io.nvda.nvme:dpf-"
	// maxNQN is NVMe's limit, in bytes.
	maxNQN = 223
	// maxFsdev is how long the name of a file system device may be: SNAP's tag
	// and device are called after it.
	maxFsdev = 17
	// maxBdev bounds what is surely no name.
	maxBdev = 1024

	maxNSID = 0xFFFFFFFE
)

// NQN is that of the subsystem that holds a device alone. It follows from the
// name, so that it is found again without being recorded. The digest keeps two
// names apart of which the readable part is the same.
func NQN(device string) string {
	sum := sha256.Sum256([]byte(device))
	suffix := "-" + hex.EncodeToString(sum[:4])
	label := strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '-':
			return c
		}
		return '-'
	}, device)
	return ownNQN + label[:min(len(label), maxNQN-len(ownNQN)-len(suffix))] + suffix
}

// Names of the virtio-fs device of a file system device.
func fsName(device string) string { return "dev_" + device }
func fsTag(device string) string  { return device + "tag" }

// Parameters reads KEY=VALUE as the node driver does with storage_parameters: a
// whole number becomes one, 1, t, true and their like become a bool where they
// are no number, all else stays text. Errors: errs.Invalid.
func Parameters(args []string) (map[string]any, error) {
	all := map[string]any{}
	for _, arg := range args {
		key, text, ok := strings.Cut(arg, "=")
		if !ok || key == "" {
			return nil, errs.Errorf(errs.Invalid, "%q is no parameter of a controller: write KEY=VALUE, as num_queues=8", arg)
		}
		if _, twice := all[key]; twice {
			return nil, errs.Errorf(errs.Invalid, "the parameter %s is given twice", key)
		}
		if n, err := strconv.Atoi(text); err == nil {
			all[key] = n
		} else if b, err := strconv.ParseBool(text); err == nil {
			all[key] = b
		} else {
			all[key] = text
		}
	}
	return all, nil
}

const queuesParameter = "num_request_queues"

var pciAddress = regexp.MustCompile(`^(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])$`)

// pci brings an address to one form: SNAP leaves the domain out in some lists.
// What is no address is returned as it is.
func pci(address string) string {
	m := pciAddress.FindStringSubmatch(strings.ToLower(address))
	if m == nil {
		return address
	}
	if m[1] == "" {
		m[1] = "0000"
	}
	return m[1] + ":" + m[2]
}

// device checks what every request has.
func (q Request) device() error {
	switch {
	case q.Mode != request.Block && q.Mode != request.Filesystem:
		return errs.Errorf(errs.Invalid, "the mode %q is not one: use %s or %s", q.Mode, request.Block, request.Filesystem)
	case q.Device == "" || len(q.Device) > maxBdev || !utf8.ValidString(q.Device) || strings.ContainsFunc(q.Device, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return errs.Errorf(errs.Invalid, "%.40q is no name of a device: it has 1 to %d bytes and no control characters", q.Device, maxBdev)
	case q.Mode == request.Filesystem && len(q.Device) > maxFsdev:
		return errs.Errorf(errs.Invalid, "the file system device %s has a name of %d bytes: SNAP takes at most %d", q.Device, len(q.Device), maxFsdev)
	case q.PCI != "" && !pciAddress.MatchString(strings.ToLower(q.PCI)):
		return errs.Errorf(errs.Invalid, "%q is no PCI address: write it as 0000:5e:00.2", q.PCI)
	case q.PCI != "" && q.VUID != "":
		return errs.Errorf(errs.Invalid, "a function has either the address %s or the VUID %s: give one of them", q.PCI, q.VUID)
	}
	return nil
}

func (q Request) forHide() (Request, error) {
	if err := q.device(); err != nil {
		return q, err
	}
	return Request{Device: q.Device, Mode: q.Mode, PCI: pci(q.PCI), VUID: q.VUID}, nil
}

// forExpose checks a request, and settles what is random about it.
func (q Request) forExpose() (Request, error) {
	if err := q.device(); err != nil {
		return q, err
	}
	q.PCI = pci(q.PCI)
	if q.Mode == request.Filesystem {
		return q, q.filesystem()
	}
	if q.NSID > maxNSID {
		return q, errs.Errorf(errs.Invalid, "no namespace has the id %d: it is 1 to %d", q.NSID, uint32(maxNSID))
	}
	if q.UUID != "" {
		if _, err := uuid.Parse(q.UUID); err != nil {
			return q, errs.Errorf(errs.Invalid, "the UUID %q: %w", q.UUID, err)
		}
	}
	for _, key := range []string{"nqn", "suspended", "pci_bdf", "vuid", "pf_id", "vf_id"} {
		if _, given := q.Parameters[key]; given {
			return q, errs.Errorf(errs.Invalid, "the parameter %s follows from the device and its function: leave it out", key)
		}
	}
	return q, nil
}

func (q Request) filesystem() error {
	if q.NSID != 0 || q.UUID != "" {
		return errs.Errorf(errs.Invalid, "a file system has no namespace: leave its id and UUID out")
	}
	for key, v := range q.Parameters {
		n, whole := v.(int)
		if key != queuesParameter || !whole || n < 1 {
			return errs.Errorf(errs.Invalid, "the parameter %s=%v: of a file system there is %s alone, a number above 0", key, v, queuesParameter)
		}
	}
	return nil
}
