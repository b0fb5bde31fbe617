package image

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/deploy/image/oci"
)

// chosen is the part of a tree that goes into the image.
type chosen struct {
	tree  tree
	names map[string]bool
}

// choose selects the programs and libraries with the libraries that they are
// linked with, the configuration, and every package's licence.
func choose(t tree, packages []string, of contents) (chosen, error) {
	c := chosen{tree: t, names: map[string]bool{}}
	for _, name := range of.programs {
		if err := c.program(name); err != nil {
			return c, fmt.Errorf("program %s: %w", name, err)
		}
	}
	for _, name := range of.libraries {
		if err := c.library(name); err != nil {
			return c, err
		}
	}
	for _, name := range of.configuration {
		names := []string{name}
		if strings.HasSuffix(name, "/") {
			names = t.below(name)
		}
		for _, name := range names {
			if err := c.file(name); err != nil {
				return c, err
			}
		}
	}
	return c, c.licences(c.packages(packages))
}

// packages returns the listed packages, and the others that the chosen files
// are of.
func (c chosen) packages(listed []string) []string {
	all := slices.Clone(listed)
	for name := range c.names {
		all = append(all, c.tree[name].from)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (c chosen) uses(p string) bool {
	for name := range c.names {
		if c.tree[name].from == p {
			return true
		}
	}
	return false
}

// licences selects every package's copyright file. If a package's documentation
// directory is a link, the file is part of another package.
func (c chosen) licences(packages []string) error {
	const docs = "/usr/share/doc/"
	var own []string
	for _, p := range packages {
		link := c.tree[docs+p].link
		if link == "" {
			own = append(own, p)
			continue
		}
		c.names[docs+p] = true
		if err := c.file(path.Join(docs, link, "copyright")); err != nil {
			return fmt.Errorf("licence of package %s: %w", p, err)
		}
	}
	for _, p := range packages {
		if !c.uses(p) {
			return fmt.Errorf("the image uses nothing of package %s: remove it from the list", p)
		}
	}
	for _, p := range own {
		if err := c.file(docs + p + "/copyright"); err != nil {
			return fmt.Errorf("licence of package %s: %w", p, err)
		}
	}
	return nil
}

func (c chosen) program(name string) error {
	for _, dir := range []string{"/usr/sbin/", "/usr/bin/"} {
		if _, there := c.tree[dir+name]; there {
			return c.file(dir + name)
		}
	}
	return errors.New("not in any package of the list")
}

// file selects a file, its link targets, and its libraries.
func (c chosen) file(name string) error {
	e, there := c.tree[name]
	if !there {
		return fmt.Errorf("%s is not in any package of the list", name)
	}
	if c.names[name] {
		return nil
	}
	c.names[name] = true
	if e.link != "" {
		target := e.link
		if !path.IsAbs(target) {
			target = path.Join(path.Dir(name), target)
		}
		return c.file(merged(target))
	}
	if e.mode&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
		return fmt.Errorf("%s has mode %v: setuid and setgid files are not allowed in the image", name, e.mode)
	}
	if bytes.HasPrefix(e.data, []byte("#!")) {
		return fmt.Errorf("%s is a script, but the image has no interpreter", name)
	}
	if !bytes.HasPrefix(e.data, []byte(elf.ELFMAG)) {
		return nil
	}
	needs, err := needed(e.data)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, n := range needs {
		if err := c.library(n); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// library selects a library by name, or the loader by path. Ceph's libraries
// find their own one in a directory of its name.
func (c chosen) library(name string) error {
	if path.IsAbs(name) {
		return c.file(merged(name))
	}
	for _, dir := range []string{"/usr/lib/x86_64-linux-gnu/", "/usr/lib/aarch64-linux-gnu/", "/usr/lib/"} {
		for _, full := range []string{dir + name, dir + "ceph/" + name} {
			if _, there := c.tree[full]; there {
				return c.file(full)
			}
		}
	}
	return fmt.Errorf("library %s is not in any package of the list", name)
}

// needed returns what an ELF file requires: libraries by name, and the loader
// by path.
func needed(data []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	needs, err := f.ImportedLibraries()
	if err != nil {
		return nil, err
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		loader, err := io.ReadAll(p.Open())
		if err != nil {
			return nil, err
		}
		needs = append(needs, strings.TrimRight(string(loader), "\x00"))
	}
	return needs, nil
}

// files returns the selected files for a layer.
func (c chosen) files() []oci.File {
	var all []oci.File
	for name := range c.names {
		e := c.tree[name]
		f := oci.File{Path: name, Link: e.link}
		if e.link == "" {
			f.Mode, f.Content = e.mode.Perm(), oci.Text(string(e.data))
		}
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b oci.File) int { return strings.Compare(a.Path, b.Path) })
	return all
}
