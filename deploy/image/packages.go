package image

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

//go:embed packages
var packagesFile string

// programs lists the programs that cleat runs: the file systems of
// internal/linux/mkfs, and modprobe of sriov/host.
func programs() []string {
	return []string{"mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "e2fsck", "resize2fs", "modprobe"}
}

// configuration lists the other files kept from packages: settings of
// mkfs.ext4, and the Debian version for scanners. A name that ends with / is a
// directory tree.
func configuration() []string {
	return []string{"/etc/mke2fs.conf", "/etc/os-release", "/etc/debian_version", "/usr/share/common-licenses/"}
}

var packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)

// Packages lists the Debian packages of the image.
func Packages() ([]string, error) { return parsePackages(packagesFile) }

func parsePackages(text string) ([]string, error) {
	var names []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if !packageName.MatchString(line) {
			return nil, fmt.Errorf("package list: %q is not the name of a Debian package", line)
		}
		if slices.Contains(names, line) {
			return nil, fmt.Errorf("package list: %s is listed twice", line)
		}
		names = append(names, line)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("package list: it is empty")
	}
	return names, nil
}
