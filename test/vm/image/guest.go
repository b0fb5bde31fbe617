package image

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Recipe describes the contents of a guest's image.
type Recipe struct {
	// Kernel is the kernel's source; empty is Stable.
	Kernel Source
	// Modules are loaded at boot with their dependencies.
	Modules []string
	// Extra modules are only available to modprobe and kernel autoloading.
	Extra []string
	// Programs are Debian programs by name, with their libraries; see
	// Filesystems.
	Programs []string
}

// Filesystems are Debian's programs that create, repair, grow and mount file
// systems.
func Filesystems() []string {
	return []string{
		"mkfs.ext4", "mke2fs", "e2fsck", "resize2fs", "tune2fs", "dumpe2fs", "debugfs", "e2image",
		"mkfs.xfs", "xfs_repair", "xfs_growfs", "xfs_io", "xfs_admin", "xfs_db", "xfs_info", "xfs_spaceman",
		"mkfs.btrfs", "btrfs", "btrfstune", "dmsetup",
		"mount", "umount", "fsfreeze", "fstrim", "blkid", "blockdev", "losetup", "unshare", "findmnt", "fallocate", "cp",
	}
}

// Files are the files and settings that QEMU and the agent need to boot a
// guest.
type Files struct {
	Kernel string // vmlinux
	Initrd string // to be followed by the guest's overlay archive
	// Modules are guest paths in load order.
	Modules []string
	// Release is the kernel release (uname -r).
	Release string
}

// Directories in the cache.
const (
	packagesDir = "packages"
	guestsDir   = "guests"
	agentsDir   = "agents"
	downloadDir = "download" // used by the process that holds the lock
)

// layout must be incremented when the same packages produce a different image.
const layout = 3

// Guest returns the image of a recipe, built if it is not cached.
func (s *Store) Guest(ctx context.Context, r Recipe) (Files, error) {
	if r.Kernel == "" {
		r.Kernel = Stable
	}
	var files Files
	err := s.locked(ctx, func() error {
		p, err := s.plan(ctx)
		if err != nil {
			return err
		}
		kernel, found := p.Kernels[r.Kernel]
		if !found {
			return fmt.Errorf("%w: %s", ErrNoSource, p.Missing[r.Kernel])
		}
		root, release, err := s.kernel(ctx, r.Kernel, kernel)
		if err != nil {
			return err
		}
		tools, err := s.unpack(ctx, Stable, "tools", p.Tools, nil)
		if err != nil {
			return err
		}
		files = Files{Kernel: filepath.Join(root, "boot", "vmlinux"), Release: release}
		return s.initrd(ctx, recipe{Recipe: r, kernel: root, release: release, tools: tools}, &files)
	})
	if err != nil {
		return Files{}, fmt.Errorf("build a guest with the kernel of %s: %w", r.Kernel, err)
	}
	return files, nil
}

// ErrNoSource means that Debian's backports or Debian testing are not available.
var ErrNoSource = errors.New("this source of Debian packages is not available")

// recipe is a Recipe with the paths of its unpacked packages.
type recipe struct {
	Recipe
	kernel, release, tools string
}

func (s *Store) initrd(ctx context.Context, r recipe, files *Files) error {
	const archiveName, orderName = "initrd.cpio", "modules.json"
	key := hashOf(layout, r.Recipe, filepath.Base(r.kernel), filepath.Base(r.tools))
	dir, err := s.once(guestsDir, key, func(dir string) error {
		tree := base()
		order, err := r.modules(ctx, dir, tree)
		if err != nil {
			return err
		}
		if err := r.programs(ctx, tree); err != nil {
			return err
		}
		list, err := json.Marshal(order)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, orderName), list, 0o644); err != nil {
			return err
		}
		return writeArchive(filepath.Join(dir, archiveName), tree)
	})
	if err != nil {
		return err
	}
	list, err := os.ReadFile(filepath.Join(dir, orderName))
	if err != nil {
		return err
	}
	files.Initrd = filepath.Join(dir, archiveName)
	return json.Unmarshal(list, &files.Modules)
}

func writeArchive(file string, tree Tree) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriterSize(f, 1<<20)
	if err := WriteArchive(w, tree); err != nil {
		return err
	}
	return w.Flush()
}

// base returns a root file system without programs.
func base() Tree {
	tree := Tree{
		"etc/passwd":        {Data: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"), Mode: 0o644},
		"etc/group":         {Data: []byte("root:x:0:\ndisk:x:6:\nnogroup:x:65534:\n"), Mode: 0o644},
		"etc/hosts":         {Data: []byte("127.0.0.1 localhost guest\n"), Mode: 0o644},
		"etc/nsswitch.conf": {Data: []byte("passwd: files\ngroup: files\nhosts: files\n"), Mode: 0o644},
		"etc/mtab":          {Link: "/proc/self/mounts"},
		"root/.profile":     {Data: []byte("PATH=/usr/sbin:/usr/bin\n"), Mode: 0o644},
		"var/lib/.keep":     {Mode: 0o644},
		"mnt/.keep":         {Mode: 0o644},
	}
	for _, dir := range mergedDirs() { // merged /usr, as in Debian 12
		tree[dir] = Entry{Link: "usr/" + dir}
	}
	return tree
}

func mergedDirs() []string { return []string{"bin", "sbin", "lib", "lib64"} }

// Path converts an absolute guest path to a Tree path.
func Path(inGuest string) string { return merged(strings.TrimPrefix(path.Clean(inGuest), "/")) }

// merged converts a package's path for merged /usr.
func merged(file string) string {
	for _, dir := range mergedDirs() {
		if strings.HasPrefix(file, dir+"/") {
			return "usr/" + file
		}
	}
	return file
}

// modules adds uncompressed kernel modules to the tree and returns the paths to
// load, in order. scratch keeps uncompressed copies.
func (r recipe) modules(ctx context.Context, scratch string, tree Tree) ([]string, error) {
	dir := filepath.Join(r.kernel, "lib", "modules", r.release)
	known, err := readModules(dir)
	if err != nil {
		return nil, err
	}
	load, err := known.closure(r.Modules...)
	if err != nil {
		return nil, err
	}
	all, err := known.closure(slices.Concat(r.Modules, r.Extra)...)
	if err != nil {
		return nil, err
	}
	inGuest := func(file string) string {
		return path.Join("usr/lib/modules", r.release, strings.TrimSuffix(file, ".xz"))
	}
	for _, file := range all {
		host := filepath.Join(dir, file)
		if strings.HasSuffix(file, ".xz") {
			if host, err = unxz(ctx, host, filepath.Join(scratch, "modules")); err != nil {
				return nil, err
			}
		}
		text, err := os.ReadFile(host)
		if err != nil {
			return nil, err
		}
		tree[inGuest(file)] = Entry{Data: unsigned(text), Mode: 0o644}
	}
	tables, err := trimTables(dir, all)
	if err != nil {
		return nil, err
	}
	for name, text := range tables {
		tree[path.Join("usr/lib/modules", r.release, name)] = Entry{Data: []byte(text), Mode: 0o644}
	}
	order := make([]string, len(load))
	for i, file := range load {
		order[i] = "/" + inGuest(file)
	}
	return order, nil
}

// unsigned removes a module's signature, because verifying that of xfs takes a
// second on an emulated processor. Format (include/linux/module_signature.h):
// signature, 12 bytes ending with its length, marker.
func unsigned(module []byte) []byte {
	const info = 12
	signed, found := bytes.CutSuffix(module, []byte("~Module signature appended~\n"))
	if !found || len(signed) < info {
		return module
	}
	length := int64(binary.BigEndian.Uint32(signed[len(signed)-4:]))
	if end := int64(len(signed)) - info - length; end >= 0 {
		return module[:end]
	}
	return module
}

func unxz(ctx context.Context, file, dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	text, err := output(exec.CommandContext(ctx, "xz", "--decompress", "--stdout", file))
	if err != nil {
		return "", err
	}
	to := filepath.Join(dir, strings.TrimSuffix(filepath.Base(file), ".xz"))
	return to, os.WriteFile(to, []byte(text), 0o644)
}

// modprobe is created by the agent: otherwise the kernel would run it three
// times during boot, without finding a module.
const modprobe = "usr/sbin/modprobe"

// programs adds busybox with its applets, and the recipe's programs with their
// libraries, which replace applets.
func (r recipe) programs(ctx context.Context, tree Tree) error {
	const busybox = "usr/bin/busybox"
	host := filepath.Join(r.tools, "bin", "busybox")
	tree[busybox] = Entry{Host: host, Mode: 0o755}
	applets, err := output(exec.CommandContext(ctx, host, "--list-full"))
	if err != nil {
		return err
	}
	for applet := range strings.Lines(applets) {
		if name := merged(strings.TrimSpace(applet)); name != busybox && name != modprobe {
			tree[name] = Entry{Link: "/" + busybox}
		}
	}
	var files []string
	for _, name := range r.Recipe.Programs {
		file, err := findProgram(r.tools, name)
		if err != nil {
			return err
		}
		files = append(files, file)
	}
	libs, err := libraries(r.tools, files)
	if err != nil {
		return err
	}
	for _, file := range slices.Concat(files, libs) {
		real, err := filepath.EvalSymlinks(filepath.Join(r.tools, file))
		if err != nil {
			return err
		}
		tree[merged(file)] = Entry{Host: real, Mode: 0o755}
	}
	return nil
}

// findProgram finds a program in Debian's program directories below an unpacked
// root.
func findProgram(root, name string) (string, error) {
	for _, dir := range []string{"usr/sbin", "sbin", "usr/bin", "bin"} {
		if _, err := os.Stat(filepath.Join(root, dir, name)); err == nil {
			return path.Join(dir, name), nil
		}
	}
	return "", fmt.Errorf("no unpacked package has the program %s", name)
}
