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

// programs are what cleat runs beside itself: the file systems of
// internal/linux/mkfs, and modprobe of sriov/host.
func programs() []string {
	return []string{"mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "e2fsck", "resize2fs", "modprobe"}
}

// configuration is what is kept of the packages beside programs, libraries and
// licences: what mkfs.ext4 reads, and what tells scanners which Debian this is.
// A name that ends with / is a directory with all that is in it.
func configuration() []string {
	return []string{"/etc/mke2fs.conf", "/etc/os-release", "/etc/debian_version", "/usr/share/common-licenses/"}
}

var packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)

// Packages are the names of the Debian packages that the image is made of.
func Packages() ([]string, error) { return parsePackages(packagesFile) }

func parsePackages(text string) ([]string, error) {
	var names []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if !packageName.MatchString(line) {
			return nil, fmt.Errorf("list of packages: %q is not the name of a Debian package", line)
		}
		if slices.Contains(names, line) {
			return nil, fmt.Errorf("list of packages: %s is in it twice", line)
		}
		names = append(names, line)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("list of packages: it is empty")
	}
	return names, nil
}
