package oci

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// Layer is an uncompressed, reproducible layer of an image.
type Layer struct{ write func(io.Writer) error }

// File is one entry of a layer. Missing parent directories are added with mode
// 0755. All entries belong to root.
type File struct {
	Path    string      // absolute and clean, such as /usr/bin/cleat
	Mode    fs.FileMode // permissions, with fs.ModeDir for a directory, fs.ModeSetuid and the like
	Content Content     // of a regular file; nil: empty
	Link    string      // target of a symbolic link
}

// Content opens a file's content and returns its size. It is called repeatedly
// and must return the same bytes.
type Content func() (io.ReadCloser, int64, error)

// Text returns content in memory.
func Text(s string) Content {
	return func() (io.ReadCloser, int64, error) {
		return io.NopCloser(strings.NewReader(s)), int64(len(s)), nil
	}
}

// HostFile returns the content of a file of this machine.
func HostFile(name string) Content {
	return func() (io.ReadCloser, int64, error) {
		f, err := os.Open(name)
		if err != nil {
			return nil, 0, err
		}
		info, err := f.Stat()
		if err == nil && !info.Mode().IsRegular() {
			err = fmt.Errorf("%s is not a regular file", name)
		}
		if err != nil {
			return nil, 0, errors.Join(err, f.Close())
		}
		return f, info.Size(), nil
	}
}

// FileLayer returns a layer of these files, sorted by path, with epoch times.
func FileLayer(files ...File) Layer {
	files = slices.Clone(files)
	slices.SortStableFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return Layer{write: func(w io.Writer) error {
		l := &layerWriter{tar: tar.NewWriter(w), directory: map[string]bool{"/": true}}
		for _, f := range files {
			if err := l.add(f); err != nil {
				return fmt.Errorf("file %s: %w", f.Path, err)
			}
		}
		return l.tar.Close()
	}}
}

type layerWriter struct {
	tar       *tar.Writer
	directory map[string]bool // added paths; true for a directory
}

func (l *layerWriter) add(f File) error {
	if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || f.Path == "/" || strings.Contains(f.Path, "\x00") {
		return errors.New("the path must be absolute and clean, such as /usr/bin/cleat")
	}
	if _, there := l.directory[f.Path]; there {
		return errors.New("duplicate path")
	}
	if err := l.parents(path.Dir(f.Path)); err != nil {
		return err
	}
	l.directory[f.Path] = f.Link == "" && f.Mode.IsDir()
	header := tar.Header{Name: f.Path[1:], Mode: permissions(f.Mode), ModTime: time.Unix(0, 0)}
	switch {
	case f.Link != "":
		if f.Content != nil || f.Mode.Type()&^fs.ModeSymlink != 0 {
			return errors.New("a symbolic link cannot have content or another type")
		}
		header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, f.Link, 0o777
		return l.tar.WriteHeader(&header)
	case f.Mode.IsDir():
		if f.Content != nil {
			return errors.New("a directory cannot have content")
		}
		header.Typeflag, header.Name = tar.TypeDir, header.Name+"/"
		return l.tar.WriteHeader(&header)
	case !f.Mode.IsRegular():
		return fmt.Errorf("unsupported mode %v: a layer can have regular files, directories and symbolic links", f.Mode)
	}
	header.Typeflag = tar.TypeReg
	return l.regular(header, f.Content)
}

func (l *layerWriter) regular(header tar.Header, content Content) error {
	if content == nil {
		content = Text("")
	}
	r, size, err := content()
	if err != nil {
		return err
	}
	defer r.Close()
	header.Size = size
	if err := l.tar.WriteHeader(&header); err != nil {
		return err
	}
	n, err := io.Copy(l.tar, r)
	if err == nil && n != size {
		err = fmt.Errorf("read %d bytes, want %d", n, size)
	}
	return err
}

func (l *layerWriter) parents(dir string) error {
	if is, there := l.directory[dir]; is {
		return nil
	} else if there {
		return fmt.Errorf("%s is not a directory", dir)
	}
	if err := l.parents(path.Dir(dir)); err != nil {
		return err
	}
	l.directory[dir] = true
	return l.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir[1:] + "/", Mode: 0o755, ModTime: time.Unix(0, 0)})
}

// permissions returns a mode in tar's terms.
func permissions(m fs.FileMode) int64 {
	p := int64(m.Perm())
	for bit, in := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&bit != 0 {
			p |= in
		}
	}
	return p
}
