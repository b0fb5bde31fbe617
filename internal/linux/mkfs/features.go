package mkfs

import (
	"bufio"
	"context"
	"regexp"
	"strconv"
	"strings"
)

// ext4Features is the complete feature list: "none" clears the defaults of
// mke2fs.conf (orphan_file needs kernel 5.15; metadata_csum_seed and others
// have no benefit here).
const ext4Features = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg," +
	"sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum"

// ext4 returns the command of mkfs.ext4. The file reads as zeros, so inode
// tables and journal are not zeroed again (assume_storage_prezeroed, since
// e2fsprogs 1.47): 276 KiB are written for a volume of 300 MiB, and the first
// mount starts no lazy initialization. An older mkfs.ext4 leaves the zeroing to
// the kernel, its default.
func (t Tools) ext4(ctx context.Context, r Request, size int64) (command, error) {
	extended := "nodiscard" + reserveGrowth(size)
	version, err := t.run(ctx, command{tool: "mkfs.ext4", args: []string{"-V"}})
	if err != nil {
		return command{}, err
	}
	if findRelease(version.output).atLeast(release{1, 47}) {
		extended += ",assume_storage_prezeroed=1"
	}
	args := []string{"-q", "-b", "4096", "-I", "256", "-m", "0", "-O", ext4Features, "-E", extended}
	return command{tool: "mkfs.ext4", args: finish(args, r, "-U")}, nil
}

// reserveGrowth reserves group descriptors for 4,096 times the size, up to 1
// TiB; mke2fs reserves for 1,024 times, and none below 16 MiB. It costs 12 KiB
// of 8 MiB, 124 KiB of 64 MiB, and at most 1 MiB.
func reserveGrowth(size int64) string {
	const times, most = 4096, 1 << 40
	if size >= most/1024 {
		return ""
	}
	return ",resize=" + strconv.FormatInt(min(size*times, most)/4096, 10)
}

// xfsPin is a feature that is set or cleared explicitly if mkfs.xfs knows it.
type xfsPin struct {
	option, feature string
	on              int
}

func xfsPins() []xfsPin {
	return []xfsPin{
		{"-m", "bigtime", 1},    // kernel 5.10; without it timestamps end in 2038
		{"-m", "inobtcount", 1}, // kernel 5.10
		{"-i", "nrext64", 0},    // kernel 5.19
		{"-i", "exchange", 0},   // kernel 6.10
		{"-n", "parent", 0},     // kernel 6.10
		{"-m", "metadir", 0},    // kernel 6.13
	}
}

// xfs returns the command of mkfs.xfs. Unknown options are errors, so features
// are looked up in its usage text first.
func (t Tools) xfs(ctx context.Context, r Request) (command, error) {
	usage, err := t.run(ctx, command{tool: "mkfs.xfs"})
	if err != nil {
		return command{}, err
	}
	options := map[string]string{
		"-m": "crc=1,finobt=1,reflink=1,rmapbt=0",
		"-i": "size=512,sparse=1",
		"-n": "version=2",
	}
	for _, pin := range xfsPins() {
		if regexp.MustCompile(`\b` + pin.feature + `=`).MatchString(usage.output) {
			options[pin.option] += "," + pin.feature + "=" + strconv.Itoa(pin.on)
		}
	}
	if r.UUID != "" {
		options["-m"] += ",uuid=" + r.UUID
	}
	args := []string{"-q", "-K", "-b", "size=4096", "-s", "size=4096", "-m", options["-m"], "-i", options["-i"], "-n", options["-n"]}
	return command{tool: "mkfs.xfs", args: finish(args, r, "")}, nil
}

// btrfs returns the command of mkfs.btrfs. Its feature list shows since which
// kernel each feature is supported; default features that are too new (such as
// block-group-tree, 6.1) are disabled.
func (t Tools) btrfs(ctx context.Context, r Request) (command, error) {
	list, err := t.run(ctx, command{tool: "mkfs.btrfs", args: []string{"-O", "list-all"}})
	if err != nil {
		return command{}, err
	}
	args := []string{"-q", "-K", "-s", "4096", "-n", "16384", "--csum", "crc32c", "-d", "single", "-m", "dup"}
	if off := tooNew(list.output); len(off) > 0 {
		args = append(args, "-O", strings.Join(off, ","))
	}
	return command{tool: "mkfs.btrfs", args: finish(args, r, "-U")}, nil
}

// oldestKernel must mount file systems created by Make: it is the first with
// mount_setattr.
var oldestKernel = release{5, 12}

// tooNew parses the output of "mkfs.btrfs -O list-all".
func tooNew(list string) []string {
	feature := regexp.MustCompile(`^([a-z0-9-]+)\s+- .*\(.*compat=(\d+\.\d+).*default=`)
	var off []string
	for lines := bufio.NewScanner(strings.NewReader(list)); lines.Scan(); {
		m := feature.FindStringSubmatch(lines.Text())
		if m != nil && !oldestKernel.atLeast(findRelease(m[2])) {
			off = append(off, "^"+m[1])
		}
	}
	return off
}

// finish appends the common arguments: label, UUID, and the path after "--", so
// that it is never parsed as an option.
func finish(args []string, r Request, uuidFlag string) []string {
	if r.Label != "" {
		args = append(args, "-L", r.Label)
	}
	if r.UUID != "" && uuidFlag != "" {
		args = append(args, uuidFlag, r.UUID)
	}
	return append(args, "--", r.Path)
}

type release struct{ major, minor int }

func (r release) atLeast(o release) bool {
	return r.major > o.major || (r.major == o.major && r.minor >= o.minor)
}

func findRelease(text string) release {
	m := regexp.MustCompile(`(\d+)\.(\d+)`).FindStringSubmatch(text)
	if m == nil {
		return release{}
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	return release{major, minor}
}
