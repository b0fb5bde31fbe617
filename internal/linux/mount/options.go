package mount

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

const (
	maxOptions    = 4096 // total bytes of all options, as in mount(2)
	maxOptionPart = 255  // bytes of a name or a value, limited by fsconfig(2)
)

// SplitOptions splits comma-separated mount options into mount attributes
// (nosuid, nodev, noexec, noatime, nodiratime, relatime, strictatime,
// nosymfollow, ro, and their opposites) and options of the file system.
// Double-quoted values can contain commas. Options without meaning for the
// kernel (defaults, nofail, _netdev, x-...) are dropped. It is idempotent.
//
// Errors: errs.Invalid for options that request another operation or device
// (bind, move, remount, loop, ...) or endanger the machine or the data
// (errors=panic, norecovery, ...), for control characters, and above 4 KiB.
func SplitOptions(flags []string) (perMount, superblock []string, err error) {
	total := 0
	for _, flag := range flags {
		total += len(flag) + 1
	}
	if total > maxOptions {
		return nil, nil, errs.Errorf(errs.Invalid, "the mount options have %d bytes in total, at most %d are allowed", total, maxOptions)
	}
	for _, flag := range flags {
		options, err := splitCommas(flag)
		if err != nil {
			return nil, nil, err
		}
		for _, option := range options {
			name, value, _ := parseOption(option)
			if err := checkOption(name, value); err != nil {
				return nil, nil, err
			}
			switch _, isMounts := attributeOf(option); {
			case isMounts:
				perMount = append(perMount, option)
			case !isUserSpaceOption(name):
				superblock = append(superblock, option)
			}
		}
	}
	return perMount, superblock, nil
}

// CheckOptions checks options as far as the running kernel parses them without
// a device. nil can also mean that it does not have the file system now.
//
// Errors: errs.Invalid as of SplitOptions, and for an option that the file system
// does not have.
func CheckOptions(fsType string, flags []string) error {
	_, superblock, err := SplitOptions(flags)
	if err != nil || fsType == "" || len(superblock) == 0 {
		return err
	}
	fs, err := openContext(fsType, "")
	if err != nil {
		return nil
	}
	defer fs.close()
	for _, option := range superblock {
		if err := fs.set(option); errors.Is(err, errs.Invalid) {
			return fmt.Errorf("file system %s: %w", fsType, err)
		}
	}
	return nil
}

func splitCommas(flag string) ([]string, error) {
	var parts []string
	start, quoted := 0, false
	for i := 0; i <= len(flag); i++ {
		switch {
		case i == len(flag) || flag[i] == ',' && !quoted:
			if i > start {
				parts = append(parts, flag[start:i])
			}
			start = i + 1
		case flag[i] < ' ' || flag[i] == 0x7f:
			return nil, errs.Errorf(errs.Invalid, "a mount option contains a control character at byte %d", i)
		case flag[i] == '"':
			quoted = !quoted
		}
	}
	if quoted {
		return nil, errs.Errorf(errs.Invalid, "a mount option of %d bytes has an unclosed quote", len(flag))
	}
	return parts, nil
}

// parseOption removes the value's quotes.
func parseOption(option string) (name, value string, hasValue bool) {
	name, value, hasValue = strings.Cut(option, "=")
	if n := len(value); n >= 2 && value[0] == '"' && value[n-1] == '"' {
		value = value[1 : n-1]
	}
	return name, value, hasValue
}

// checkOption validates an option. Its errors contain the name but never the
// value, which can be a secret (CSI specification).
func checkOption(name, value string) error {
	switch {
	case name == "" || len(name) > maxOptionPart || strings.ContainsFunc(name, notInName):
		return errs.Errorf(errs.Invalid, "invalid mount option name: want letters, digits and . _ : -, followed by = if the option has a value")
	case len(value) > maxOptionPart:
		return errs.Errorf(errs.Invalid, "mount option %s: the value has %d bytes, the kernel accepts at most %d", name, len(value), maxOptionPart)
	case strings.Contains(value, `"`):
		return errs.Errorf(errs.Invalid, "mount option %s: quotes are allowed only around the whole value", name)
	}
	if why := forbidden(name, value); why != "" {
		return errs.Errorf(errs.Invalid, "mount option %s is not allowed for a volume: %s", name, why)
	}
	return nil
}

func notInName(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._:-", r)
}

func forbidden(name, value string) string {
	switch name {
	case "bind", "rbind", "move", "remount":
		return "it requests another operation than a mount"
	case "shared", "rshared", "private", "rprivate", "slave", "rslave", "unbindable", "runbindable":
		return "it changes how mounts propagate on this machine"
	case "loop", "offset", "sizelimit", "encryption":
		return "the volume's device is attached without it"
	case "source", "device", "logdev", "rtdev", "journal_dev", "journal_path":
		return "it refers to another device than the volume's own"
	case "degraded":
		return "it is for file systems with several devices, and a volume has one"
	case "errors", "fatal_errors":
		if value == "panic" {
			return name + "=panic halts the whole machine on an error of one volume"
		}
	case "noload", "norecovery", "nologreplay", "rescue", "usebackuproot", "recovery", "sb":
		return "it mounts an old or inconsistent state of the file system; without it the log is replayed"
	case "debug", "abort":
		return "it is for file system developers only"
	}
	if strings.HasPrefix(name, "X-") {
		return "only mount(8) implements it"
	}
	return ""
}

// isLabel: the option has a label of SELinux.
func isLabel(name string) bool {
	return name == "context" || name == "fscontext" || name == "defcontext" || name == "rootcontext"
}

func isUserSpaceOption(name string) bool {
	switch name {
	case "defaults", "auto", "noauto", "nofail", "_netdev", "comment":
		return true
	}
	return strings.HasPrefix(name, "x-")
}

type attributes struct{ set, clear uint64 }

func (a attributes) and(b attributes) attributes {
	return attributes{set: a.set&^b.clear | b.set, clear: a.clear&^b.set | b.clear}
}

func attributeOf(option string) (attributes, bool) {
	switch option {
	case "ro":
		return attributes{set: unix.MOUNT_ATTR_RDONLY}, true
	case "rw":
		return attributes{clear: unix.MOUNT_ATTR_RDONLY}, true
	case "nosuid":
		return attributes{set: unix.MOUNT_ATTR_NOSUID}, true
	case "suid":
		return attributes{clear: unix.MOUNT_ATTR_NOSUID}, true
	case "nodev":
		return attributes{set: unix.MOUNT_ATTR_NODEV}, true
	case "dev":
		return attributes{clear: unix.MOUNT_ATTR_NODEV}, true
	case "noexec":
		return attributes{set: unix.MOUNT_ATTR_NOEXEC}, true
	case "exec":
		return attributes{clear: unix.MOUNT_ATTR_NOEXEC}, true
	case "nodiratime":
		return attributes{set: unix.MOUNT_ATTR_NODIRATIME}, true
	case "diratime":
		return attributes{clear: unix.MOUNT_ATTR_NODIRATIME}, true
	case "nosymfollow":
		return attributes{set: unix.MOUNT_ATTR_NOSYMFOLLOW}, true
	case "symfollow":
		return attributes{clear: unix.MOUNT_ATTR_NOSYMFOLLOW}, true
	case "noatime":
		return attributes{set: unix.MOUNT_ATTR_NOATIME, clear: unix.MOUNT_ATTR__ATIME}, true
	case "strictatime":
		return attributes{set: unix.MOUNT_ATTR_STRICTATIME, clear: unix.MOUNT_ATTR__ATIME}, true
	case "relatime", "atime", "nostrictatime":
		return attributes{set: unix.MOUNT_ATTR_RELATIME, clear: unix.MOUNT_ATTR__ATIME}, true
	}
	return attributes{}, false
}

func attributesOf(options []string, readOnly bool) (attributes, error) {
	var all attributes
	for _, option := range options {
		change, ok := attributeOf(option)
		if !ok {
			name, _, _ := parseOption(option)
			return attributes{}, errs.Errorf(errs.Invalid, "%q is not a mount attribute; these include ro, nosuid, nodev, noexec, noatime, nodiratime, relatime, strictatime and nosymfollow", errs.Clip(name, 64))
		}
		all = all.and(change)
	}
	if readOnly {
		all = all.and(attributes{set: unix.MOUNT_ATTR_RDONLY})
	}
	return all, nil
}
