package image

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/test/testkit"
)

const (
	testDeps = `kernel/fs/ext4/ext4.ko: kernel/fs/jbd2/jbd2.ko kernel/lib/crc16.ko
kernel/fs/jbd2/jbd2.ko:
kernel/lib/crc16.ko.xz:
kernel/lib/crc16.ko:
kernel/drivers/nvme/host/nvme-tcp.ko.xz: kernel/drivers/nvme/host/nvme-fabrics.ko.xz kernel/drivers/nvme/host/nvme-core.ko.xz
kernel/drivers/nvme/host/nvme-fabrics.ko.xz: kernel/drivers/nvme/host/nvme-core.ko.xz
kernel/drivers/nvme/host/nvme-core.ko.xz:
kernel/crypto/crc32c_generic.ko:
`
	testSoft = `# Soft dependencies extracted from modules themselves.
softdep ext4 pre: crypto-crc32c no-such
softdep nvme-core post: ext4
`
	testAlias = `# Aliases extracted from modules themselves.
alias crypto-crc32c crc32c_generic
alias fs-ext4 ext4
alias pci:v*d* nvme
`
	testBuiltin = "kernel/drivers/virtio/virtio_pci.ko\n"
)

func testTree(t testing.TB) *moduleTree {
	t.Helper()
	tree := testkit.Value(parseModules(testDeps, testSoft, testAlias, testBuiltin))(t)
	return tree
}

func TestModuleClosure(t *testing.T) {
	for name, c := range map[string]struct {
		ask, want []string
		err       string
	}{
		"none":               {nil, nil, ""},
		"dependencies first": {[]string{"nvme-tcp"}, []string{"nvme-core", "nvme-fabrics", "nvme-tcp"}, ""},
		"either spelling":    {[]string{"nvme_tcp", "nvme-core"}, []string{"nvme-core", "nvme-fabrics", "nvme-tcp"}, ""},
		"soft dependencies":  {[]string{"ext4"}, []string{"crc32c_generic", "crc16", "jbd2", "ext4"}, ""},
		"built in":           {[]string{"virtio-pci"}, nil, ""},
		"absent":             {[]string{"ext4", "zfs"}, nil, `no module "zfs"`},
	} {
		files, err := testTree(t).closure(c.ask...)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want an error with %q", name, err, c.err)
			}
			continue
		}
		var got []string
		for _, f := range files {
			got = append(got, strings.ReplaceAll(moduleName(f), "_", "-"))
		}
		for i := range c.want {
			c.want[i] = strings.ReplaceAll(c.want[i], "_", "-")
		}
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got)\n%s", name, err, diff)
		}
	}
}

// Each module is loaded once and after its dependencies, for any dependency
// graph.
func TestModulesLoadAfterTheirDependencies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "modules")
		file := func(i int) string { return "m" + string(rune('a'+i)) + ".ko" }
		var deps strings.Builder
		needs := make([]map[int]bool, n)
		for i := range n {
			needs[i] = map[int]bool{}
			for j := range i { // depmod lists indirect dependencies too
				if rapid.Bool().Draw(t, "needs") {
					needs[i][j] = true
					for k := range needs[j] {
						needs[i][k] = true
					}
				}
			}
			deps.WriteString(file(i) + ":")
			for j := i - 1; j >= 0; j-- {
				if needs[i][j] {
					deps.WriteString(" " + file(j))
				}
			}
			deps.WriteString("\n")
		}
		tree := testkit.Value(parseModules(deps.String(), "", "", ""))(t)
		asked := rapid.SliceOf(rapid.IntRange(0, n-1)).Draw(t, "asked")
		var names []string
		for _, i := range asked {
			names = append(names, moduleName(file(i)))
		}
		order := testkit.Value(tree.closure(names...))(t)
		for _, i := range asked {
			at := slices.Index(order, file(i))
			if at < 0 {
				t.Fatalf("module %s is missing in %v", file(i), order)
			}
			for j := range needs[i] {
				if first := slices.Index(order, file(j)); first < 0 || first > at {
					t.Fatalf("%s must load after %s: got %v", file(i), file(j), order)
				}
			}
		}
		slices.Sort(order)
		if len(slices.Compact(order)) != len(order) {
			t.Fatalf("duplicate module in %v", order)
		}
	})
}

func TestTrimTable(t *testing.T) {
	names := map[string]bool{"ext4": true, "nvme_tcp": true}
	for table, c := range map[string]struct{ text, want string }{
		"modules.dep":     {testDeps, "kernel/fs/ext4/ext4.ko: kernel/fs/jbd2/jbd2.ko kernel/lib/crc16.ko\nkernel/drivers/nvme/host/nvme-tcp.ko: kernel/drivers/nvme/host/nvme-fabrics.ko kernel/drivers/nvme/host/nvme-core.ko\n"},
		"modules.alias":   {testAlias, "alias fs-ext4 ext4\n"},
		"modules.softdep": {testSoft, "softdep ext4 pre: crypto-crc32c no-such\n"},
		"modules.symbols": {"alias symbol:ext4_x ext4\nalias symbol:y xfs\n", "alias symbol:ext4_x ext4\n"},
		"modules.order":   {"kernel/fs/ext4/ext4.ko\nkernel/fs/xfs/xfs.ko\n", "kernel/fs/ext4/ext4.ko\n"},
		"modules.builtin": {testBuiltin, testBuiltin},
	} {
		if diff := cmp.Diff(c.want, trimTable(table, c.text, names)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", table, diff)
		}
	}
}

func TestUnsignedRemovesModuleSignature(t *testing.T) {
	const marker = "~Module signature appended~\n"
	info := string([]byte{0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 3})
	for module, want := range map[string]string{
		"":                               "",
		"module":                         "module",
		"module" + "sig" + info + marker: "module",
		"sig" + info + marker:            "",
		"ig" + info + marker:             "ig" + info + marker, // longer than the module
		marker:                           marker,
	} {
		if got := string(unsigned([]byte(module))); got != want {
			t.Errorf("unsigned(%q) = %q, want %q", module, got, want)
		}
	}
}
