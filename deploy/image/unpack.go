package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// entry is a regular file or a symbolic link of a package.
type entry struct {
	mode fs.FileMode
	data []byte
	link string
	from string // package name
}

// tree holds the files of packages by absolute path. Files in directories that
// Debian merged into /usr are stored below /usr only.
type tree map[string]entry

// stanza is a package's description, in the format of dpkg's status file.
type stanza struct{ name, version, control string }

// unpack reads the archives. It runs no package scripts.
func unpack(ctx context.Context, dir string, archives []archive) (tree, []stanza, error) {
	all := tree{}
	var described []stanza
	for _, a := range archives {
		file := filepath.Join(dir, a.File)
		control, err := output(exec.CommandContext(ctx, "dpkg-deb", "--field", file))
		if err != nil {
			return nil, nil, err
		}
		described = append(described, stanza{a.Name(), a.Version(), control})
		content, err := output(exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", file))
		if err != nil {
			return nil, nil, err
		}
		if err := all.read(strings.NewReader(content), a.Name()); err != nil {
			return nil, nil, fmt.Errorf("package %s: %w", a.File, err)
		}
	}
	return all, described, nil
}

func (t tree) read(r io.Reader, from string) error {
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := merged(h.Name)
		e := entry{mode: h.FileInfo().Mode(), from: from}
		switch h.Typeflag {
		case tar.TypeDir:
			continue
		case tar.TypeReg:
			e.data, err = io.ReadAll(in)
		case tar.TypeSymlink:
			e.link = h.Linkname
		case tar.TypeLink:
			other, there := t[merged(h.Linkname)]
			if !there {
				err = fmt.Errorf("link target %s does not exist", h.Linkname)
			}
			e = other
		default:
			err = fmt.Errorf("unsupported type %q", h.Typeflag)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
		if other, there := t[name]; there {
			return fmt.Errorf("%s is also in package %s", name, other.from)
		}
		t[name] = e
	}
}

// mergedDirs lists the links into /usr (Debian's UsrMerge).
func mergedDirs() []string { return []string{"bin", "lib", "lib64", "sbin"} }

// merged returns the path of an archive's file in a root with merged
// directories.
func merged(name string) string {
	name = path.Clean("/" + name)
	first, _, _ := strings.Cut(name[1:], "/")
	if slices.Contains(mergedDirs(), first) && name != "/"+first {
		return "/usr" + name
	}
	return name
}

func (t tree) below(dir string) []string {
	var names []string
	for name := range maps.Keys(t) {
		if strings.HasPrefix(name, dir) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
