package image

import (
	"fmt"
	"io/fs"
	"strings"

	"github.com/cleatproject/cleat/deploy/image/oci"
)

// root returns the image's files that are not from packages: mount points, two
// users, and dpkg's status, which vulnerability scanners read.
func root(described []stanza) []oci.File {
	dir := func(name string, mode fs.FileMode) oci.File { return oci.File{Path: name, Mode: fs.ModeDir | mode} }
	text := func(name, content string) oci.File {
		return oci.File{Path: name, Mode: 0o644, Content: oci.Text(content)}
	}
	files := []oci.File{
		dir("/dev", 0o755), dir("/proc", 0o555), dir("/run", 0o755), dir("/sys", 0o555), dir("/root", 0o700), dir("/tmp", fs.ModeSticky|0o777),
		dir("/usr/lib64", 0o755), dir("/var/lib/cleat", 0o700), dir("/var/tmp", fs.ModeSticky|0o777), {Path: "/var/run", Link: "/run"},
		text("/etc/passwd", "root:x:0:0:root:/root:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"),
		text("/etc/group", "root:x:0:\nnogroup:x:65534:\n"),
		text("/var/lib/dpkg/status", status(described)),
	}
	for _, name := range mergedDirs() {
		files = append(files, oci.File{Path: "/" + name, Link: "usr/" + name})
	}
	return files
}

// status returns dpkg's status. It lists whole packages, even if the image has
// only some of their files.
func status(described []stanza) string {
	var b strings.Builder
	for _, s := range described {
		first, rest, _ := strings.Cut(s.control, "\n")
		fmt.Fprintf(&b, "%s\nStatus: install ok installed\n%s\n\n", first, strings.TrimRight(rest, "\n"))
	}
	return b.String()
}
