# Posts by httpx over HTTP/2: URL, how many, how many at once, bytes of each body at most,
# the status to get. Writes {"OK": ..., "Errors": [...]}.
import asyncio
import json
import sys

import httpx


async def main(url, posts, at_once, size, status):
    ok, errors = 0, []
    turns = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(http2=True, verify=False, timeout=30) as client:

        async def post(i):
            nonlocal ok
            async with turns:
                try:
                    answer = await client.post(url, content=b"x" * (size - i))
                    if (answer.http_version, answer.status_code) != ("HTTP/2", status):
                        raise ValueError(f"{answer.http_version} {answer.status_code}")
                    ok += 1
                except Exception as e:
                    errors.append(f"{type(e).__name__}: {e}")

        await asyncio.gather(*(post(i) for i in range(posts)))
    print(json.dumps({"OK": ok, "Errors": errors}))


asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
