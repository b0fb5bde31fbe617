package image

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
)

// Variant names an image.
type Variant string

const (
	// Default is the image of every part of cleat, with the static program.
	Default Variant = ""
	// Ceph is the image of the controller of Ceph volumes, with the program that
	// is linked with Ceph's libraries.
	Ceph Variant = "ceph"
)

//go:embed packages
var packagesFile string

//go:embed packages-ceph
var cephPackagesFile string

// contents says what is in an image beside cleat.
type contents struct {
	name          string // of the image
	description   string
	packages      string   // text of the package list
	release       string   // of Debian, as apt names it; its packages can have dependencies outside the list. Empty: Debian 12
	programs      []string // that cleat runs
	libraries     []string // that cleat is linked with
	configuration []string // other files kept from packages; a name that ends with / is a directory tree
	samples       bool     // NVIDIA's chart runs the image
	settings      map[string]string
	flags         string // that give these settings
}

// variants lists the images. The programs of Default are the file systems of
// internal/linux/mkfs, and modprobe of internal/linux/kmod. The configuration has
// the settings of mkfs.ext4, and the Debian version for scanners.
func variants() map[Variant]contents {
	scanned := []string{"/etc/os-release", "/etc/debian_version", "/usr/share/common-licenses/"}
	return map[Variant]contents{
		Default: {
			name: "cleat", description: "Storage drivers and device plugins of a node", packages: packagesFile,
			programs:      []string{"mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "e2fsck", "e2image", "resize2fs", "modprobe"},
			configuration: append([]string{"/etc/mke2fs.conf"}, scanned...), samples: true,
			settings: map[string]string{"CGO_ENABLED": "0", "GOOS": "linux"}, flags: "CGO_ENABLED=0 GOOS=linux",
		},
		Ceph: {
			name: "cleat-ceph", description: "Controller of Ceph volumes", packages: cephPackagesFile, release: "testing",
			libraries: []string{"librados.so.2", "librbd.so.1", "libcephfs.so.2", "libc.so.6"}, configuration: scanned,
			settings: map[string]string{"CGO_ENABLED": "1", "GOOS": "linux", "-tags": "ceph,pacific"}, flags: "CGO_ENABLED=1 GOOS=linux and -tags ceph,pacific",
		},
	}
}

// contents returns what is in the image.
func (v Variant) contents() (contents, error) {
	c, known := variants()[v]
	if !known {
		return c, fmt.Errorf("unknown variant %q of the image, use one of %q", v, slices.Sorted(maps.Keys(variants())))
	}
	return c, nil
}
