// Prints next times of cron expressions, as robfig/cron v3.0.1 computes them for kube-controller-manager.
//
// times.tsv was made once, with Go 1.26 and the time zones of tzdata 2025b:
//
//	go run . > times.tsv
//
// A line has the expression, the start and the next time in Unix seconds. "never" stands for no time within five years,
// and "invalid" for an expression that the library refuses.
package main

import (
	"fmt"
	"math/rand"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

const rows = 1000

var zones = []string{
	"UTC", "Europe/Berlin", "America/New_York", "America/St_Johns", "America/Havana", "America/Asuncion",
	"America/Sao_Paulo", "Africa/Cairo", "Africa/Casablanca", "Asia/Beirut", "Asia/Gaza", "Asia/Tehran",
	"Asia/Kathmandu", "Australia/Lord_Howe", "Pacific/Chatham", "Antarctica/Troll",
}

var written = []string{
	"*/5 * */2 * 1", "*/5 * */1 * 1", "0 0 1-31 * 1", "0 0 ? * 1", "0 0 */2 * ?", "0 0 */2 * */2", "0 0 *,5 * 1",
	"0 0 29 2 *", "0 0 30 2 *", "0 0 31 2 1", "0 0 29 FEB sun", "0 0 31 4,6,9,11 *", "0 0 1 1 mOn-FRI/2", "5/20 3/6 * * *",
	"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly", "@Daily", "@reboot", "@every 90m",
	"@every 1h30m10s", "@every 1.5h", "@every 300ms", "@every -1h", "@every 0", "@every 1", "@every", "@every h",
	"@every +2h", "@every 1us2ns", "@every .5h", "@every 1.h", "@every .h", "@every 9999999h", "@every 1H",
	"", "*", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 0 *", "* * * 13 *",
	"* * * * 7", "* * * * sun-7", "5-1 * * * *", "1-2-3 * * * *", "1/2/3 * * * *", "*/0 * * * *", "*/-1 * * * *", "-1 * * * *",
	"+5 * * * *", "05 * * * *", "1_0 * * * *", "*-7 * * * *", "?-x/3 * * * *", ", * * * *", "1,,2 * * * *", "x * * * *",
	"* * L * *", "* * * * 1#2", "* * * march *", "jan * * * *", "*/99 * * * *", "7/99 * * * *", "\t1 \t 2 * * *", "0 0 , , *",
	"0 0 5 * ,", "TZ=UTC", "TZ=Nowhere/At_All * * * * *", "TZ= 0 0 * * *", "CRON_TZ=Asia/Tokyo 0 5 * * *",
	"TZ=Asia/Tokyo 0 5 * * *", "TZ=Asia/Tokyo @daily", "TZ=Asia/Tokyo   @every 1h", "tz=Asia/Tokyo 0 5 * * *",
	"TZ=../UTC 0 0 * * *", "TZ=/UTC 0 0 * * *", "0 0 * * * TZ=UTC",
}

func number(r *rand.Rand, low, high int) int { return low + r.Intn(high-low+1) }

func value(r *rand.Rand, low, high int, names string) func(int) string {
	return func(n int) string {
		if names != "" && r.Intn(3) == 0 {
			return strings.Fields(names)[n-low]
		}
		return fmt.Sprint(n)
	}
}

func item(r *rand.Rand, low, high int, names string) string {
	show := value(r, low, high, names)
	from := number(r, low, high)
	step := fmt.Sprintf("/%d", number(r, 1, 1+(high-low)/2))
	switch r.Intn(8) {
	case 0:
		return "*"
	case 1:
		return []string{"*", "?"}[r.Intn(2)] + step
	case 2:
		return show(from) + "-" + show(number(r, from, high))
	case 3:
		return show(from) + "-" + show(number(r, from, high)) + step
	case 4:
		return show(from) + step
	default:
		return show(from)
	}
}

func field(r *rand.Rand, star float64, low, high int, names string) string {
	if r.Float64() < star {
		return []string{"*", "*", "*", "?"}[r.Intn(4)]
	}
	items := []string{item(r, low, high, names)}
	for r.Intn(4) == 0 {
		items = append(items, item(r, low, high, names))
	}
	return strings.Join(items, ",")
}

func expression(r *rand.Rand) string {
	fields := []string{
		field(r, 0.1, 0, 59, ""),
		field(r, 0.2, 0, 23, ""),
		field(r, 0.3, 1, 31, ""),
		field(r, 0.5, 1, 12, "jan FEB Mar apr may Jun jul AUG sep Oct nov dec"),
		field(r, 0.4, 0, 6, "SUN mon Tue wed THU fri sat"),
	}
	if r.Intn(3) == 0 { // clock changes come soon after
		fields[2], fields[3], fields[4] = "*", "*", "*"
	}
	return strings.Join(fields, " ")
}

// changes returns the seconds at which the clock of a zone changes, from 2016 to 2025.
func changes(zone *time.Location) []int64 {
	var found []int64
	t := time.Date(2016, 1, 1, 0, 0, 0, 0, time.UTC)
	for t.Year() < 2026 {
		next := t.Add(30 * time.Minute)
		_, before := t.In(zone).Zone()
		_, after := next.In(zone).Zone()
		if before != after {
			found = append(found, next.Unix())
		}
		t = next
	}
	return found
}

func start(r *rand.Rand, changes []int64) int64 {
	switch choice := r.Intn(5); {
	case choice < 3 && len(changes) > 0:
		return changes[r.Intn(len(changes))] + int64(number(r, -36*3600, 6*3600))
	case choice == 3:
		return time.Date(number(r, 2016, 2025), time.February, 28, number(r, -24, 48), 0, number(r, 0, 90), 0, time.UTC).Unix()
	default:
		return time.Date(2016, 1, 1, 0, 0, number(r, 0, 10*365*24*3600), 0, time.UTC).Unix()
	}
}

func next(expression string, start int64) (result string) {
	defer func() { // as ParseCronScheduleWithPanicRecovery of Kubernetes
		if recover() != nil {
			result = "invalid"
		}
	}()
	schedule, err := cron.ParseStandard(expression)
	if err != nil {
		return "invalid"
	}
	t := schedule.Next(time.Unix(start, 0).UTC())
	if t.IsZero() {
		return "never"
	}
	return fmt.Sprint(t.Unix())
}

func main() {
	r := rand.New(rand.NewSource(38))
	known := map[string][]int64{}
	for _, name := range zones {
		zone, err := time.LoadLocation(name)
		if err != nil {
			panic(err)
		}
		known[name] = changes(zone)
	}
	line := func(expression string, start int64) {
		fmt.Printf("%s\t%d\t%s\n", strings.ReplaceAll(expression, "\t", `\t`), start, next(expression, start))
	}
	for _, expression := range written {
		line(expression, time.Date(2025, 2, 27, 12, 0, 30, 0, time.UTC).Unix())
	}
	for range rows {
		zone := zones[r.Intn(len(zones))]
		line("TZ="+zone+" "+expression(r), start(r, known[zone]))
	}
}
