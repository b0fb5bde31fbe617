package image

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
)

// libraryDirs are Debian's library directories, relative to an unpacked root.
func libraryDirs() []string {
	return []string{"usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib", "lib", "lib64", "usr/lib64"}
}

// libraries lists the shared libraries and loaders of programs, including
// indirect dependencies, as paths relative to root. Libraries keep the names by
// which programs refer to them.
func libraries(root string, programs []string) ([]string, error) {
	var found []string
	todo := slices.Clone(programs)
	for len(todo) > 0 {
		file := todo[0]
		todo = todo[1:]
		needs, err := needed(filepath.Join(root, file))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, name := range needs {
			library, err := findLibrary(root, name)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			if !slices.Contains(found, library) {
				found = append(found, library)
				todo = append(todo, library)
			}
		}
	}
	return found, nil
}

// needed returns the libraries of an ELF file and the absolute path of its
// loader. Scripts and static programs need nothing.
func needed(file string) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	magic := make([]byte, len(elf.ELFMAG))
	if n, err := f.ReadAt(magic, 0); err != nil && !errors.Is(err, io.EOF) || n > 0 && string(magic) != elf.ELFMAG {
		return nil, err // a script
	}
	e, err := elf.NewFile(f)
	if err != nil {
		return nil, err
	}
	needs, err := e.ImportedLibraries()
	if err != nil {
		return nil, fmt.Errorf("read the dynamic section: %w", err)
	}
	for _, p := range e.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		loader := make([]byte, p.Filesz)
		if _, err := p.ReadAt(loader, 0); err != nil {
			return nil, fmt.Errorf("read the loader's path: %w", err)
		}
		needs = append(needs, string(loader[:max(0, len(loader)-1)]))
	}
	return needs, nil
}

func findLibrary(root, name string) (string, error) {
	if path.IsAbs(name) {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			return "", fmt.Errorf("find the loader: %w", err)
		}
		return name[1:], nil
	}
	for _, dir := range libraryDirs() {
		if _, err := os.Stat(filepath.Join(root, dir, name)); err == nil {
			return path.Join(dir, name), nil
		}
	}
	return "", fmt.Errorf("no unpacked package has the library %s", name)
}
