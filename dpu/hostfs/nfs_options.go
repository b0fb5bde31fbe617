package hostfs

import (
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mount"
)

// nfsOptions are the sorted mount options of a locator.
type nfsOptions struct {
	versions []string // in the order to try
	kernel   []string // including the attributes of all mounts
	readOnly bool
}

// parseNFSOptions refuses (Invalid) options of a tenant that override the
// locator or affect this machine. The kernel validates the others.
func parseNFSOptions(options []string) (nfsOptions, error) {
	perMount, superblock, err := mount.SplitOptions(options)
	if err != nil {
		return nfsOptions{}, err
	}
	var o nfsOptions
	for _, option := range perMount {
		switch option {
		case "suid", "dev":
			return nfsOptions{}, errs.Errorf(errs.Invalid, "mount option %s is not allowed: files of a volume must give no rights on this machine", option)
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
			return nfsOptions{}, errs.Errorf(errs.Invalid, "mount option %.64q: unknown NFS version, use 3, 4, 4.0, 4.1 or 4.2", option)
		case isVersion && o.versions != nil && !slices.Equal(o.versions, versionsOf(version)):
			return nfsOptions{}, errs.Errorf(errs.Invalid, "mount option %.64q conflicts with another: give one NFS version only", option)
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

// forbiddenNFS returns why a tenant must not set an option, or "".
func forbiddenNFS(name string) string {
	switch strings.ToLower(name) {
	case "addr", "mountaddr", "mounthost":
		return "the locator sets the server"
	case "clientaddr":
		return "the kernel chooses the address of this machine"
	case "context", "fscontext", "defcontext", "rootcontext", "seclabel":
		return "only the administrator can set security labels"
	case "sloppy":
		return "it would hide misspelled options"
	case "minorversion":
		return "use vers instead, such as vers=4.1"
	case "bg", "fg", "retry":
		return "the caller retries failed mounts"
	case "user", "users", "owner", "group", "nouser", "noowner":
		return "it applies to mount(8) only"
	case "fsc":
		return "it would store the tenant's data in a cache on this machine"
	}
	return ""
}

// nfsVersion parses vers=4.1, nfsvers=4.1 and v4.1.
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

// versionsOf returns versions, newest first; 4 means any 4.x, as in mount(8).
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

// checkLocks refuses version 3 without rpc.statd, which locks need. Local locks
// would let two machines hold one lock, so nolock must be explicit, as for
// mount.nfs.
func checkLocks(version string, options []string, hasStatd func() (bool, error)) error {
	if version != "3" {
		return nil
	}
	for _, o := range options {
		name, value, _ := strings.Cut(o, "=")
		if name == "nolock" || name == "lock" || name == "local_lock" && (value == "all" || value == "posix") {
			return nil
		}
	}
	runs, err := hasStatd()
	switch {
	case err != nil: // not wrapped: it is not an error of the server
		return errs.Errorf(errs.Unavailable, "NFS version 3 locks need rpc.statd, and it is not known whether it runs on this machine: the port mapper at %s does not answer (%v)", portmapAddr, err)
	case !runs:
		return errs.Errorf(errs.Precondition, "NFS version 3 locks need rpc.statd, which does not run on this machine: use NFS version 4, or add nolock to mountoptions if no other machine locks files of this export")
	}
	return nil
}
