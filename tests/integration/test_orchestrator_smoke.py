from fleet import fleet, single, chain, fan

async def test_smoke(dsn):
    async with fleet(dsn) as f:
        o = await f.orchestrator()
        await f.worker()
        row = await f.run(single(params={"a": 1}))
        assert row["status"] == "completed"
        print(await f.trace(row["job_id"]))
        row = await f.run(fan(), {"items": [1,2,3]})
        print(row["result_data"])

async def test_local(dsn):
    async with fleet(dsn) as f:
        o = await f.orchestrator()
        await f.worker(owner=o)
        row = await f.run(chain(10))
        assert row["status"] == "completed"
