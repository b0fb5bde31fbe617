package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/chromedp"
)

// built returns the server of a new site, and its pages.
func built(t *testing.T) (*httptest.Server, []string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "site")
	for range 2 { // a site is replaced
		if err := build("../..", dir); err != nil {
			t.Fatal(err)
		}
	}
	var pages []string
	err := filepath.WalkDir(dir, func(file string, _ os.DirEntry, err error) error {
		if name, _ := filepath.Rel(dir, file); filepath.Ext(name) == ".html" {
			pages = append(pages, filepath.ToSlash(name))
		}
		return err
	})
	if err != nil || len(pages) < 30 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(server.Close)
	return server, pages
}

// browse starts a browser, which ends with the test.
func browse(t *testing.T) context.Context {
	t.Helper()
	program := ""
	for _, name := range []string{"chromium-headless-shell", "chromium"} {
		if found, err := exec.LookPath(name); err == nil {
			program = found
			break
		}
	}
	if program == "" {
		t.Fatal("neither chromium-headless-shell nor chromium is installed: scripts/need site")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	// As root Chromium has no sandbox, and it opens only pages of this test.
	ctx, cancel = chromedp.NewExecAllocator(ctx, append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox)...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	return ctx
}

func do(t *testing.T, ctx context.Context, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(ctx, steps...); err != nil {
		t.Fatal(err)
	}
}

func ask[T any](t *testing.T, ctx context.Context, a chromedp.Action[T]) T {
	t.Helper()
	answer, err := chromedp.Run(ctx, a)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// look is what the browser sees of a page at the width of a phone.
type look struct {
	Links, IDs, Broken []string
	Blocks, Buttons    int
	Width, Wide        int
	Widest             string
}

const lookAtPage = `(() => {
  const wide = [...document.querySelectorAll("main *")].find((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest("pre, table"));
  return {
    links: [...document.querySelectorAll("a[href]")].map((a) => a.href),
    ids: [...document.querySelectorAll("[id]")].map((e) => e.id),
    broken: [...document.images].filter((i) => !i.complete || !i.naturalWidth).map((i) => i.src),
    blocks: document.querySelectorAll("pre").length,
    buttons: document.querySelectorAll("pre > button.copy").length,
    width: innerWidth, wide: document.documentElement.scrollWidth,
    widest: wide ? wide.outerHTML.slice(0, 200) : "",
  };
})()`

// A browser of a phone's width shows every page: no link, anchor or picture is
// broken, no page is wider than the screen, and each block of code has its button.
func TestPages(t *testing.T) {
	server, pages := built(t)
	ctx := browse(t)
	looks := map[string]look{}
	do(t, ctx, chromedp.EmulateViewport(390, 844))
	for _, name := range pages {
		do(t, ctx, chromedp.Navigate(server.URL+"/"+name))
		l := ask(t, ctx, chromedp.Evaluate[look](lookAtPage))
		looks["/"+name] = l
		if l.Blocks != l.Buttons {
			t.Errorf("%s has %d blocks of code and %d buttons that copy", name, l.Blocks, l.Buttons)
		}
		if len(l.Broken) > 0 {
			t.Errorf("%s does not show %v", name, l.Broken)
		}
		if l.Width != 390 || l.Wide > l.Width {
			t.Errorf("%s is %d pixels wide on a screen of %d: %s", name, l.Wide, l.Width, l.Widest)
		}
	}
	count := 0
	for name, l := range looks {
		for _, link := range l.Links {
			to, err := url.Parse(link)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if to.Host != strings.TrimPrefix(server.URL, "http://") {
				if file, ok := strings.CutPrefix(link, sources); ok {
					file, _, _ = strings.Cut(file, "#")
					if _, err := os.Stat(filepath.Join("../..", file)); err != nil {
						t.Errorf("%s links to a file that the repository lacks: %v", name, err)
					}
				}
				continue
			}
			count++
			if strings.HasSuffix(to.Path, "/") { // the file server's name of an index
				to.Path += "index.html"
			}
			page, known := looks[to.Path]
			if !known {
				t.Errorf("%s links to %s, which is no page", name, to.Path)
			} else if to.Fragment != "" && !slices.Contains(page.IDs, to.Fragment) {
				t.Errorf("%s links to %s#%s, and there is no such heading", name, to.Path, to.Fragment)
			}
		}
	}
	if count < 1000 {
		t.Errorf("only %d links were followed", count)
	}
}

// The button copies what the block shows, and the search leads to the section that
// has the words.
func TestCopyAndSearch(t *testing.T) {
	server, _ := built(t)
	ctx := browse(t)
	do(t, ctx, chromedp.Navigate(server.URL+"/docs/start-local.html"))
	for _, name := range []string{"clipboard-read", "clipboard-write"} {
		if _, err := chromedp.CallBrowser(ctx, browser.SetPermission, browser.SetPermissionParams{
			Permission: &browser.PermissionDescriptor{Name: name}, Setting: browser.PermissionSettingGranted, Origin: server.URL,
		}); err != nil {
			t.Fatal(err)
		}
	}
	shown := ask(t, ctx, chromedp.TextContent("pre code"))
	do(t, ctx, chromedp.Click("pre > button.copy"))
	ask(t, ctx, chromedp.Poll[bool](`document.querySelector("pre > button.copy").textContent === "Copied"`))
	copied := ask(t, ctx, chromedp.Evaluate[string](`navigator.clipboard.readText()`, chromedp.EvalAwaitPromise))
	if copied != shown || !strings.Contains(copied, "helm install cleat") {
		t.Errorf("the block shows %q, copied was %q", shown, copied)
	}
	do(t, ctx,
		chromedp.SendKeys("#search", "boot reports of nodes"),
		chromedp.WaitVisible("#found a"),
		chromedp.Click(`#found a[href$="docs/ceph.html#boot-reports"]`),
		chromedp.WaitVisible("#boot-reports"),
	)
	if at, want := ask(t, ctx, chromedp.Location()), server.URL+"/docs/ceph.html#boot-reports"; at != want {
		t.Errorf("the search leads to %s, want %s", at, want)
	}
}

func TestOtherDirectoriesAreKept(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := build("../..", dir); err == nil || !strings.Contains(err.Error(), "has other files") {
		t.Errorf("build into a directory with files: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "mine")); err != nil {
		t.Error(err)
	}
}
