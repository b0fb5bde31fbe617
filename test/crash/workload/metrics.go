package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
)

// zeroMetrics are metrics that are zero when nothing is left: they count
// records, which no list of volumes shows.
func zeroMetrics() []string {
	return []string{"cleat_node_volumes", "cleat_pool_volumes", "cleat_pool_snapshots", "cleat_pool_promised_bytes", "cleat_pool_copies"}
}

// healthMetric matches metrics that exist only when something is wrong.
var healthMetric = regexp.MustCompile(`(?m)^cleat_(?:pool|volume)_health\{.*$`)

// verifyMetrics checks the metrics of a driver that owns nothing.
func verifyMetrics(ctx context.Context, d Driver) error {
	text, err := scrape(ctx, d)
	if err != nil {
		return fmt.Errorf("read the driver's metrics: %w", err)
	}
	var errs []error
	for _, name := range zeroMetrics() {
		found := regexp.MustCompile(`(?m)^` + name + `(?:\{[^}]*\})? (\S+)$`).FindSubmatch(text)
		switch {
		case found == nil:
			errs = append(errs, fmt.Errorf("the driver has no metric %s", name))
		case string(found[1]) != "0":
			errs = append(errs, fmt.Errorf("metric %s is %s after everything was deleted", name, found[1]))
		}
	}
	for _, line := range healthMetric.FindAll(text, -1) {
		errs = append(errs, fmt.Errorf("with nothing left the driver complains: %s", line))
	}
	return errors.Join(errs...)
}

func scrape(ctx context.Context, d Driver) ([]byte, error) {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialMetrics(ctx) },
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://driver/metrics", nil)
	if err != nil {
		return nil, err
	}
	answer, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, text)
	}
	return text, err
}
