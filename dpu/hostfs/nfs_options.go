package hostfs

import (
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mount"
)

// nfsOptions are mount options of a locator, sorted.
type nfsOptions struct {
	versions []string // to try, in this order
	kernel   []string // for the kernel, with ours
	readOnly bool
}

// parseNFSOptions reads the mount options that a tenant gave. The kernel judges
// what they mean to NFS; those are refused that would lead elsewhere than the
// locator says, or that are about this machine. Invalid: such options.
func parseNFSOptions(options []string) (nfsOptions, error) {
	perMount, superblock, err := mount.SplitOptions(options)
	if err != nil {
		return nfsOptions{}, err
	}
	var o nfsOptions
	for _, option := range perMount {
		switch option {
		case "suid", "dev":
			return nfsOptions{}, errs.Errorf(errs.Invalid, "mount option %s is not allowed: the files of a volume give no rights on this machine", option)
		case "ro", "rw":
			o.readOnly = option == "ro"
		default:
			o.kernel = append(o.kernel, option)
		}
	}
	for _, option := range superblock {
		name, value, _ := strings.Cut(option, "=")
		if why := forbiddenNFS(name); why != "" {
			return nfsOptions{}, errs.Errorf(errs.Invalid, "mount option %s is not allowed: %s", name, why)
		}
		version, isVersion := nfsVersion(name, value)
		switch {
		case isVersion && !isKnownVersion(version):
			return nfsOptions{}, errs.Errorf(errs.Invalid, "mount option %.64q: there are the versions 3, 4, 4.0, 4.1 and 4.2 of NFS", option)
		case isVersion && o.versions != nil && !slices.Equal(o.versions, versionsOf(version)):
			return nfsOptions{}, errs.Errorf(errs.Invalid, "mount option %.64q contradicts another: give one version of NFS", option)
		case isVersion:
			o.versions = versionsOf(version)
		default:
			o.kernel = append(o.kernel, option)
		}
	}
	if o.versions == nil {
		o.versions = versionsOf("")
	}
	o.kernel = append(o.kernel, attributes()...)
	return o, nil
}

// forbiddenNFS says why an option must not come from a tenant; empty if it may.
func forbiddenNFS(name string) string {
	switch strings.ToLower(name) {
	case "addr", "mountaddr", "mounthost":
		return "the server is what the locator says, and nothing else"
	case "clientaddr":
		return "the address of this machine is the kernel's to choose"
	case "context", "fscontext", "defcontext", "rootcontext", "seclabel":
		return "security labels are the operator's to set"
	case "sloppy":
		return "an option that is misspelt had better be refused"
	case "minorversion":
		return "write vers=4.1, or the version that it means"
	case "bg", "fg", "retry":
		return "a mount that fails is tried again by whoever asks for it"
	case "user", "users", "owner", "group", "nouser", "noowner":
		return "it is for mount(8)"
	case "fsc":
		return "it would keep the tenant's data in a cache of this machine"
	}
	return ""
}

// nfsVersion reads the ways to write a version: vers=4.1, nfsvers=4.1, v4.1.
func nfsVersion(name, value string) (version string, ok bool) {
	switch {
	case name == "vers", name == "nfsvers":
		return value, true
	case value == "" && len(name) > 1 && name[0] == 'v' && name[1] >= '0' && name[1] <= '9':
		return name[1:], true
	}
	return "", false
}

func isKnownVersion(version string) bool {
	return slices.Contains([]string{"3", "4", "4.0", "4.1", "4.2"}, version)
}

// versionsOf are the versions that a word stands for, the newest first; 4 means
// any of them, as for mount(8).
func versionsOf(word string) []string {
	four := []string{"4.2", "4.1", "4.0"}
	switch word {
	case "":
		return append(four, "3")
	case "4":
		return four
	}
	return []string{word}
}

// checkLocks refuses a mount of version 3 whose locks could not work: they need
// rpc.statd on this machine. To keep them local instead would let two machines
// hold one lock, so that has to be asked for; mount.nfs decides likewise.
func checkLocks(version string, options []string, hasStatd func() bool) error {
	if version != "3" {
		return nil
	}
	for _, o := range options {
		name, value, _ := strings.Cut(o, "=")
		if name == "nolock" || name == "lock" || name == "local_lock" && (value == "all" || value == "posix") {
			return nil
		}
	}
	if !hasStatd() {
		return errs.Errorf(errs.Precondition, "locks of NFS version 3 need rpc.statd on this machine, and there is none: use a server of version 4, or add nolock to mountoptions if no other machine locks files there")
	}
	return nil
}
